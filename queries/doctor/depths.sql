-- depths: how many runs of blocks are not one deeper than their parent, and paths not as deep as they are long
-- $trace_id: the trace
-- columns: blocks, requests
WITH runs AS (
    SELECT block, depth::BIGINT AS depth FROM blocks WHERE trace_id = $trace_id
),
above AS (
    SELECT runs.*, coalesce(branches.parent, runs.block - 1) AS parent
    FROM runs LEFT JOIN branches ON branches.trace_id = $trace_id AND branches.block = runs.block
),
ends AS (
    SELECT leaf, blocks FROM requests WHERE trace_id = $trace_id
    UNION ALL
    SELECT carried_leaf, carried_blocks FROM requests WHERE trace_id = $trace_id
)
SELECT
    (
        SELECT count(*) FILTER (above.depth != coalesce(runs.depth + (above.parent - runs.block) + 1, 0))
        FROM above ASOF LEFT JOIN runs ON above.parent >= runs.block
    ) AS blocks,
    (
        SELECT count(*) FILTER (runs.depth + (ends.leaf - runs.block) + 1 != ends.blocks)
        FROM ends ASOF JOIN runs ON ends.leaf >= runs.block
    ) AS requests
