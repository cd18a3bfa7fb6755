-- request_values: how many requests have which sizes, single- and multi-turn ones apart
-- $trace_id: the trace
-- $block_size: tokens of a block
-- $first: the first request
-- $end: the first one not any more
-- columns: size, multi_turn, value, requests
SELECT
    CASE  -- as request_sizes has them
        WHEN grouping(input) = 0 THEN 0
        WHEN grouping(output) = 0 THEN 1
        WHEN grouping(tokens) = 0 THEN 2
        WHEN grouping(hit_blocks) = 0 THEN 3
        ELSE 4
    END::TINYINT AS size,
    multi_turn,
    coalesce(input, output, tokens, hit_blocks, prompt_share)::DOUBLE AS value,
    count(*) AS requests
FROM (
    SELECT
        turn > 1 AS multi_turn,
        input_tokens AS input,
        output_tokens AS output,
        input_tokens::BIGINT + output_tokens AS tokens,
        ideal_blocks AS hit_blocks,
        ideal_blocks::DOUBLE * $block_size / input_tokens AS prompt_share
    FROM requests
    WHERE trace_id = $trace_id AND request >= $first AND request < $end
)
GROUP BY GROUPING SETS (
    (multi_turn, input),
    (multi_turn, output),
    (multi_turn, tokens),
    (multi_turn, hit_blocks),
    (multi_turn, prompt_share)
)
