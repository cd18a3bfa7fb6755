-- requests: conversations, their histories, and cached blocks that no later prompt identifies
-- $trace_id: the trace
-- columns: conversation, parent, turn, input_tokens, history_tokens, anonymous_blocks
SELECT
    conversation,
    coalesce(parent, -1)::INTEGER AS parent,
    turn,
    input_tokens,
    input_tokens::BIGINT + output_tokens AS history_tokens,
    cached_blocks - carried_blocks AS anonymous_blocks
FROM requests
WHERE trace_id = $trace_id
ORDER BY request
