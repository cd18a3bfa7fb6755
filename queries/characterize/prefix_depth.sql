-- prefix_depth: depth in the prompt to which an infinite cache hits, for all, single- and multi-turn
-- $trace_id: the trace
-- $block_size: tokens of a block
-- columns: multi_turn, requests, blocks_mean, blocks_at, blocks_max, share_mean, share_at, share_max
SELECT
    multi_turn,  -- NULL: all requests
    count(*) AS requests,
    avg(ideal_blocks) AS blocks_mean,
    quantile_disc(ideal_blocks, [0.5, 0.8, 0.9, 0.99]) AS blocks_at,
    max(ideal_blocks) AS blocks_max,
    avg(share) AS share_mean,
    quantile_disc(share, [0.5, 0.8, 0.9, 0.99]) AS share_at,
    max(share) AS share_max
FROM (
    SELECT
        turn > 1 AS multi_turn,
        ideal_blocks,
        ideal_blocks::DOUBLE * $block_size / input_tokens AS share
    FROM requests
    WHERE trace_id = $trace_id
)
GROUP BY GROUPING SETS ((), (multi_turn))
ORDER BY multi_turn NULLS FIRST
