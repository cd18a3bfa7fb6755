-- request_sizes: means and maxima of the sizes of requests, for all, single- and multi-turn
-- $trace_id: the trace
-- $block_size: tokens of a block
-- columns: multi_turn, requests, input_mean, input_max, output_mean, output_max, tokens_mean, tokens_max, blocks_mean, blocks_max, hit_blocks_mean, hit_blocks_max, prompt_share_mean, prompt_share_max
SELECT
    multi_turn,  -- NULL: all requests
    count(*) AS requests,
    avg(input_tokens) AS input_mean,
    max(input_tokens) AS input_max,
    avg(output_tokens) AS output_mean,
    max(output_tokens) AS output_max,
    avg(tokens) AS tokens_mean,
    max(tokens) AS tokens_max,
    avg(blocks) AS blocks_mean,
    max(blocks) AS blocks_max,
    avg(ideal_blocks) AS hit_blocks_mean,
    max(ideal_blocks) AS hit_blocks_max,
    avg(prompt_share) AS prompt_share_mean,
    max(prompt_share) AS prompt_share_max
FROM (
    SELECT
        turn > 1 AS multi_turn,
        input_tokens,
        output_tokens,
        input_tokens::BIGINT + output_tokens AS tokens,
        (tokens + $block_size - 1) // $block_size AS blocks,
        ideal_blocks,
        ideal_blocks::DOUBLE * $block_size / input_tokens AS prompt_share
    FROM requests
    WHERE trace_id = $trace_id
)
GROUP BY GROUPING SETS ((), (multi_turn))
ORDER BY multi_turn NULLS FIRST
