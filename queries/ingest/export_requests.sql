-- export_requests: a range of requests with the fields of a trace file, in order of arrival
-- $trace_id: the trace
-- $first: the first request
-- $after: one past the last request
-- $own_ids: whether the trace's chat ids identify the requests; otherwise their numbers do
-- columns: arrival_s, chat_id, parent_chat_id, user_id, type, turn, input_tokens, output_tokens, model, adapter, cache_salt, worker, ttft_s, queue_s, duration_s, cached_tokens, delay_s, waits_for, blocks, leaf, clock, retention, repeated_tokens
SELECT
    child.arrival_s,
    if($own_ids, child.chat_id, child.request) AS chat_id,
    if($own_ids, parent.chat_id, parent.request) AS parent_chat_id,
    child.user_id, child.type, child.turn, child.input_tokens, child.output_tokens,
    child.model, child.adapter, child.salt::VARCHAR AS cache_salt, child.worker, child.ttft_s,
    child.queue_s, child.duration_s, child.cached_tokens, child.delay_s,
    if($own_ids, awaited.chat_id, awaited.request) AS waits_for,
    child.blocks, child.leaf, child.clock,
    child.retention, child.repeated_tokens
FROM attributed AS child
LEFT JOIN requests AS parent
    ON parent.trace_id = child.trace_id AND parent.request = child.parent
LEFT JOIN requests AS awaited
    ON awaited.trace_id = child.trace_id AND awaited.request = child.waits_for
WHERE child.trace_id = $trace_id AND child.request >= $first AND child.request < $after
ORDER BY child.request
