-- block_skew: share of all reuse that falls on the most reused blocks
-- $trace_id: the trace
-- $top_shares: shares of the cacheable blocks, for example [0.1]; a fraction of a block counts in proportion
-- columns: top_share, reuse_share, blocks, reused_blocks
WITH counted AS (  -- a few hundred rows: blocks with the same count share one
    SELECT reuses, sum(blocks)::BIGINT AS blocks
    FROM block_groups
    WHERE trace_id = $trace_id
    GROUP BY reuses
),
ranked AS (
    SELECT
        reuses,
        blocks,
        sum(blocks) OVER (ORDER BY reuses DESC) - blocks AS more_reused,
        sum(blocks) OVER () AS all_blocks,
        sum(reuses * blocks) OVER () AS all_reuses,
        coalesce(sum(blocks) FILTER (WHERE reuses > 0) OVER (), 0) AS reused_blocks
    FROM counted
)
SELECT
    top_share,
    sum(reuses * greatest(least(top_share * all_blocks - more_reused, blocks), 0))
        / nullif(any_value(all_reuses), 0)::DOUBLE AS reuse_share,
    any_value(all_blocks)::BIGINT AS blocks,
    any_value(reused_blocks)::BIGINT AS reused_blocks
FROM ranked
CROSS JOIN (SELECT unnest($top_shares::DOUBLE[]) AS top_share) AS tops
GROUP BY top_share
ORDER BY top_share
