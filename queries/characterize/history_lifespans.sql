-- history_lifespans: number of blocks by their first and their last request, in that order
-- $trace_id: the trace
-- columns: first_request, last_request, blocks
SELECT first_request, last_request, sum(blocks)::BIGINT AS blocks
FROM block_groups
WHERE trace_id = $trace_id
GROUP BY first_request, last_request
ORDER BY first_request, last_request
