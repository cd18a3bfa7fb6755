-- remove_runs: drop what the table runs holds of this trace
-- $trace_id: the trace
DELETE FROM runs WHERE trace_id = $trace_id
