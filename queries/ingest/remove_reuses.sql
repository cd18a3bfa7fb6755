-- remove_reuses: delete the rows of this trace from reuses
-- $trace_id: the trace
DELETE FROM reuses WHERE trace_id = $trace_id
