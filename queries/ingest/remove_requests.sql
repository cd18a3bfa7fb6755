-- remove_requests: drop what the table requests holds of this trace
-- $trace_id: the trace
DELETE FROM requests WHERE trace_id = $trace_id
