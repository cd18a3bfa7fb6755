-- hot_blocks: the most reused blocks, parents before their children
-- $trace_id: the trace
-- $most: maximum number of blocks
-- columns: block, parent, hash_id, reuses
WITH runs AS (  -- as many hold as many blocks at least, none of them behind one of another run
    SELECT block, depth, hash_id, reuses, blocks
    FROM blocks
    WHERE trace_id = $trace_id AND reuses > 0
    ORDER BY reuses DESC, depth, block
    LIMIT $most
),
hot AS (
    SELECT block + step AS block, depth + step AS depth, hash_id + step AS hash_id, reuses
    FROM (SELECT *, unnest(range(least(blocks, $most))) AS step FROM runs)
    ORDER BY reuses DESC, depth, block
    LIMIT $most
)
SELECT hot.block, coalesce(branches.parent, hot.block - 1) AS parent, hot.hash_id, hot.reuses
FROM hot
LEFT JOIN branches ON branches.trace_id = $trace_id AND branches.block = hot.block
ORDER BY hot.reuses DESC, hot.depth, hot.block
