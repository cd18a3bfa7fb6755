-- categories: requests, tokens and ideal hits of each category
-- $trace_id: the trace
-- columns: category, type, turn_bucket, requests, multi_turn_requests, input_tokens, output_tokens, ideal_blocks
SELECT
    type || ' ' || turn_bucket AS category,
    type,
    turn_bucket,
    count(*) AS requests,
    count(*) FILTER (WHERE turn > 1) AS multi_turn_requests,
    sum(input_tokens)::BIGINT AS input_tokens,
    sum(output_tokens)::BIGINT AS output_tokens,
    sum(ideal_blocks)::BIGINT AS ideal_blocks
FROM categorized
WHERE trace_id = $trace_id
GROUP BY type, turn_bucket
ORDER BY type, turn_bucket
