-- contribution: requests, tokens and ideal hits by type and by first or later turn
-- $trace_id: the trace
-- columns: type, multi_turn, requests, input_tokens, full_blocks, ideal_blocks
SELECT
    type,
    turn > 1 AS multi_turn,
    count(*) AS requests,
    sum(input_tokens)::BIGINT AS input_tokens,
    sum(full_blocks)::BIGINT AS full_blocks,
    sum(ideal_blocks)::BIGINT AS ideal_blocks
FROM requests
WHERE trace_id = $trace_id
GROUP BY type, multi_turn
ORDER BY type, multi_turn
