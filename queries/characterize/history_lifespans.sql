-- history_lifespans: how many blocks were first touched by one request and last by another
-- $trace_id: the trace
-- columns: first_request, last_request, blocks
SELECT first_request, last_request, count(*) AS blocks
FROM blocks
WHERE trace_id = $trace_id AND first_request IS NOT NULL
GROUP BY first_request, last_request
