-- remove_traces: drop what the table traces holds of this trace
-- $trace_id: the trace
DELETE FROM traces WHERE trace_id = $trace_id
