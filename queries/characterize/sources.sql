-- sources: reused blocks by the conversation and user of their last touch
-- $trace_id: the trace
-- columns: same_conversation, same_user, other
WITH reused AS (
    SELECT
        runs.blocks,
        CASE
            WHEN reuser.conversation = source.conversation THEN 'conversation'
            WHEN reuser.user_id = source.user_id THEN 'user'
            ELSE 'other'
        END AS relation
    FROM reuses AS runs
    -- the trace as a constant: a join on two columns takes twice as long
    JOIN requests AS reuser ON reuser.trace_id = $trace_id AND reuser.request = runs.request
    JOIN requests AS source ON source.trace_id = $trace_id AND source.request = runs.prev
    WHERE runs.trace_id = $trace_id
)
SELECT
    coalesce(sum(blocks) FILTER (WHERE relation = 'conversation'), 0)::BIGINT AS same_conversation,
    coalesce(sum(blocks) FILTER (WHERE relation = 'user'), 0)::BIGINT AS same_user,
    coalesce(sum(blocks) FILTER (WHERE relation = 'other'), 0)::BIGINT AS other
FROM reused
