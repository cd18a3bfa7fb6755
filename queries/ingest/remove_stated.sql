-- remove_stated: delete the rows of this trace from stated
-- $trace_id: the trace
DELETE FROM stated WHERE trace_id = $trace_id
