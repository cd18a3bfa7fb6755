-- remove_branches: delete the rows of this trace from branches
-- $trace_id: the trace
DELETE FROM branches WHERE trace_id = $trace_id
