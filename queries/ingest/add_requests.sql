-- add_requests: requests from the columns of `frame`, whose types are indices
-- $trace_id: the trace
-- $types: the names of the types, by index
-- $no_id: chat and user id that stands for none
-- $none: number that stands for none in the other columns
INSERT INTO requests (
    trace_id, request, arrival_s, chat_id, user_id, type, turn, parent, conversation,
    input_tokens, output_tokens, blocks, full_blocks, leaf, cached_blocks, carried_leaf,
    carried_blocks, ideal_blocks
)
SELECT
    $trace_id, request, arrival_s, nullif(chat_id, $no_id), nullif(user_id, $no_id),
    ($types)[type + 1], turn, nullif(parent, $none), conversation, input_tokens, output_tokens,
    blocks, full_blocks, leaf, cached_blocks, carried_leaf, carried_blocks, ideal_blocks
FROM frame
