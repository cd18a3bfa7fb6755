-- prompts: the columns of a replay, a row per request, in order of arrival
-- $trace_id: the trace
-- columns: request, arrival_s, input_tokens, output_tokens, conversation, parent, user, category, blocks, full_blocks, leaf, cached_blocks, carried_leaf, carried_blocks, clock
WITH users AS (
    SELECT user_id, (row_number() OVER (ORDER BY user_id) - 1)::INTEGER AS number
    FROM (SELECT DISTINCT user_id FROM requests WHERE trace_id = $trace_id AND user_id IS NOT NULL)
),
known AS (
    SELECT type, turn_bucket, (row_number() OVER (ORDER BY type, turn_bucket) - 1)::INTEGER AS number
    FROM (SELECT DISTINCT type, turn_bucket FROM categorized WHERE trace_id = $trace_id)
)
SELECT
    request, arrival_s, input_tokens, output_tokens, conversation, coalesce(parent, -1) AS parent,
    coalesce(users.number, -1) AS user, known.number AS category, blocks, full_blocks, leaf,
    cached_blocks, carried_leaf, carried_blocks, coalesce(clock, -1) AS clock
FROM categorized
JOIN known USING (type, turn_bucket)
LEFT JOIN users USING (user_id)
LEFT JOIN request_attributes USING (trace_id, request)
WHERE trace_id = $trace_id
ORDER BY request
