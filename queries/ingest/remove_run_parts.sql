-- remove_run_parts: drop what the table run_parts holds of this trace
-- $trace_id: the trace
DELETE FROM run_parts WHERE run_id IN (SELECT run_id FROM runs WHERE trace_id = $trace_id)
