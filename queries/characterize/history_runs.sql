-- history_runs: every run of reuse: request, previous request and number of blocks
-- $trace_id: the trace
-- $first: the first request
-- $end: the first one not any more
-- columns: request, prev, blocks
SELECT request, prev, blocks
FROM reuses
WHERE trace_id = $trace_id AND request >= $first AND request < $end
