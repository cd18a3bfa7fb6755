-- remove_parts: delete the rows of this trace from parts
-- $trace_id: the trace
DELETE FROM parts WHERE trace_id = $trace_id
