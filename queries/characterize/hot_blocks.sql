-- hot_blocks: the blocks that most prompts found already written, none before its parent
-- $trace_id: the trace
-- $most: so many blocks at most
-- columns: block, parent, hash_id, reuses
SELECT block, parent, hash_id, reuses
FROM blocks
WHERE trace_id = $trace_id AND reuses > 0
ORDER BY reuses DESC, depth, block
LIMIT $most
