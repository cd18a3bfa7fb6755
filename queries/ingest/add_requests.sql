-- add_requests: requests from the columns of `frame`, whose names are indices
-- $trace_id: the trace
-- $types: the names of the types, by index
-- $model_names: likewise
-- $adapter_names: likewise
-- $worker_names: likewise
-- $retention_names: likewise, the distinct directives as JSON
-- $no_id: chat and user id that stands for none
-- $none: number that stands for none in the other columns
INSERT INTO requests (
    trace_id, request, arrival_s, chat_id, user_id, type, turn, parent, conversation,
    input_tokens, output_tokens, blocks, full_blocks, leaf, cached_blocks, carried_leaf,
    carried_blocks, ideal_blocks, model, adapter, salt, worker, ttft_s, queue_s, duration_s,
    cached_tokens, delay_s, waits_for, clock, retention
)
SELECT
    $trace_id, request, arrival_s, nullif(chat_id, $no_id), nullif(user_id, $no_id),
    ($types)[type + 1], turn, nullif(parent, $none), conversation, input_tokens, output_tokens,
    blocks, full_blocks, leaf, cached_blocks, carried_leaf, carried_blocks, ideal_blocks,
    ($model_names)[model + 1], ($adapter_names)[adapter + 1], nullif(salt, $none), ($worker_names)[worker + 1],
    nullif(ttft_s, $none), nullif(queue_s, $none), nullif(duration_s, $none),
    nullif(cached_tokens, $none), nullif(delay_s, $none), nullif(waits_for, $none), nullif(clock, $none),
    ($retention_names)[retention + 1]
FROM frame
