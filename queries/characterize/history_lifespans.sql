-- history_lifespans: number of blocks by their first and their last request
-- $trace_id: the trace
-- columns: first_request, last_request, blocks
SELECT first_request, last_request, count(*) AS blocks
FROM blocks
WHERE trace_id = $trace_id AND first_request IS NOT NULL
GROUP BY first_request, last_request
