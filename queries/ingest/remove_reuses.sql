-- remove_reuses: drop what the table reuses holds of this trace
-- $trace_id: the trace
DELETE FROM reuses WHERE trace_id = $trace_id
