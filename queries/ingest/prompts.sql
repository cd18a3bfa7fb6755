-- prompts: the columns that a replay walks, a request a row, in order of arrival
-- $trace_id: the trace
-- columns: arrival_s, input_tokens, output_tokens, conversation, parent, blocks, full_blocks, leaf, cached_blocks, carried_leaf, carried_blocks
SELECT
    arrival_s, input_tokens, output_tokens, conversation, coalesce(parent, -1) AS parent, blocks,
    full_blocks, leaf, cached_blocks, carried_leaf, carried_blocks
FROM requests
WHERE trace_id = $trace_id
ORDER BY request
