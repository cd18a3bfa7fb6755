-- remove_requests: delete the rows of this trace from requests
-- $trace_id: the trace
DELETE FROM requests WHERE trace_id = $trace_id
