-- user_heat_map: reused blocks of the users with most reuse, by the user of their last touch
-- $trace_id: the trace
-- $top: number of users, ranked from 1 by the blocks they reuse; other sources have no rank
-- columns: source_rank, reuser_rank, source_user, reuser_user, blocks
WITH ranked AS (
    SELECT
        reuser.user_id,
        row_number() OVER (ORDER BY sum(runs.blocks) DESC, reuser.user_id) AS user_rank
    FROM reuses AS runs
    JOIN requests AS reuser ON reuser.trace_id = $trace_id AND reuser.request = runs.request
    WHERE runs.trace_id = $trace_id AND reuser.user_id IS NOT NULL
    GROUP BY reuser.user_id
    QUALIFY user_rank <= $top
)
SELECT
    by_rank.user_rank AS source_rank,
    top.user_rank AS reuser_rank,
    by_rank.user_id AS source_user,
    top.user_id AS reuser_user,
    sum(runs.blocks)::BIGINT AS blocks
FROM ranked AS top
JOIN requests AS reuser ON reuser.trace_id = $trace_id AND reuser.user_id = top.user_id
JOIN reuses AS runs ON runs.trace_id = $trace_id AND runs.request = reuser.request
JOIN requests AS source ON source.trace_id = $trace_id AND source.request = runs.prev
LEFT JOIN ranked AS by_rank ON by_rank.user_id = source.user_id
GROUP BY ALL
ORDER BY reuser_rank, source_rank NULLS LAST
