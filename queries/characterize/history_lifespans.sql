-- history_lifespans: number of blocks by their first and their last request, in any order
-- $trace_id: the trace
-- $first: the first request
-- $end: the first one not any more
-- columns: first_request, last_request, blocks
SELECT first_request, last_request, blocks
FROM block_groups
WHERE trace_id = $trace_id AND first_request >= $first AND first_request < $end
