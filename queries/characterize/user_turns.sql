-- user_turns: mean and standard deviation of turns per conversation, over the users
-- $trace_id: the trace
-- columns: users, average_mean, average_at, average_max, deviation_users, deviation_mean, deviation_at, deviation_max
WITH conversations AS (
    SELECT arg_min(user_id, request) AS user_id, count(*) AS turns
    FROM requests
    WHERE trace_id = $trace_id
    GROUP BY conversation
),
per_user AS (  -- a user with one conversation has no deviation
    SELECT avg(turns) AS average, stddev_samp(turns) AS deviation
    FROM conversations
    WHERE user_id IS NOT NULL
    GROUP BY user_id
)
SELECT
    count(*) AS users,
    avg(average) AS average_mean,
    quantile_disc(average, [0.5, 0.8, 0.9, 0.99]) AS average_at,
    max(average) AS average_max,
    count(deviation) AS deviation_users,
    avg(deviation) AS deviation_mean,
    quantile_disc(deviation, [0.5, 0.8, 0.9, 0.99]) AS deviation_at,
    max(deviation) AS deviation_max
FROM per_user
