-- remove_request_attributes: delete the rows of this trace from request_attributes
-- $trace_id: the trace
DELETE FROM request_attributes WHERE trace_id = $trace_id
