-- remove_runs: delete the runs of every validation of a trace
-- $trace_id: the trace
DELETE FROM validation_runs
WHERE validation_id IN (SELECT validation_id FROM validations WHERE trace_id = $trace_id)
