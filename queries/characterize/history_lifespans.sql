-- history_lifespans: number of blocks by their first and their last request, in that order
-- $trace_id: the trace
-- $first: the first request
-- $end: the first one not any more
-- columns: first_request, last_request, blocks
SELECT first_request, last_request, sum(blocks)::BIGINT AS blocks
FROM block_groups
WHERE trace_id = $trace_id AND first_request >= $first AND first_request < $end
GROUP BY first_request, last_request
ORDER BY first_request, last_request
