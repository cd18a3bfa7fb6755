-- hot_blocks: the most reused blocks, parents before their children
-- $trace_id: the trace
-- $most: maximum number of blocks
-- columns: block, parent, hash_id, reuses
SELECT block, parent, hash_id, reuses
FROM blocks
WHERE trace_id = $trace_id AND reuses > 0
ORDER BY reuses DESC, depth, block
LIMIT $most
