-- request_sizes: size of requests, output included, for all, single- and multi-turn
-- $trace_id: the trace
-- $block_size: tokens of a block
-- columns: multi_turn, requests, tokens_mean, tokens_at, tokens_max, blocks_mean, blocks_at, blocks_max
SELECT
    multi_turn,  -- NULL: all requests
    count(*) AS requests,
    avg(tokens) AS tokens_mean,
    quantile_disc(tokens, [0.5, 0.8, 0.9, 0.99]) AS tokens_at,
    max(tokens) AS tokens_max,
    avg(blocks) AS blocks_mean,
    -- blocks grow with tokens, so their quantiles are those of the tokens, in blocks
    [(x + $block_size - 1) // $block_size FOR x IN tokens_at] AS blocks_at,
    max(blocks) AS blocks_max
FROM (
    SELECT
        turn > 1 AS multi_turn,
        input_tokens::BIGINT + output_tokens AS tokens,
        (tokens + $block_size - 1) // $block_size AS blocks
    FROM requests
    WHERE trace_id = $trace_id
)
GROUP BY GROUPING SETS ((), (multi_turn))
ORDER BY multi_turn NULLS FIRST
