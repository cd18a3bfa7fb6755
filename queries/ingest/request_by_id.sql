-- request_by_id: the first request with this id
-- $trace_id: the trace
-- $chat_id: as `requests` has it
-- columns: request
SELECT min(request) AS request
FROM requests
WHERE trace_id = $trace_id AND chat_id = $chat_id
