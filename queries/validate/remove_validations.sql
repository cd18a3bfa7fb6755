-- remove_validations: delete every validation of a trace
-- $trace_id: the trace
DELETE FROM validations WHERE trace_id = $trace_id
