-- user_skew: share of all ideal hits that falls on the users with most hits
-- $trace_id: the trace
-- $top_shares: shares of the users, for example [0.1]; a fraction of a user counts in proportion
-- columns: top_share, hit_share, users, users_of_90_percent_hits, users_of_90_percent_requests
WITH per_user AS (
    SELECT user_id, sum(ideal_blocks) AS hits, count(*) AS requests
    FROM requests
    WHERE trace_id = $trace_id AND user_id IS NOT NULL
    GROUP BY user_id
),
ranked AS (
    SELECT
        hits,
        row_number() OVER by_hits AS hit_rank,
        row_number() OVER by_requests AS request_rank,
        sum(hits) OVER by_hits AS hits_so_far,
        sum(requests) OVER by_requests AS requests_so_far,
        sum(hits) OVER () AS all_hits,
        sum(requests) OVER () AS all_requests,
        count(*) OVER () AS users
    FROM per_user
    WINDOW
        by_hits AS (ORDER BY hits DESC, user_id ROWS UNBOUNDED PRECEDING),
        by_requests AS (ORDER BY requests DESC, user_id ROWS UNBOUNDED PRECEDING)
)
SELECT
    top_share,
    sum(hits * greatest(least(top_share * users - (hit_rank - 1), 1), 0))
        / nullif(any_value(all_hits), 0)::DOUBLE AS hit_share,
    any_value(users) AS users,
    min(hit_rank) FILTER (WHERE 10 * hits_so_far >= 9 * all_hits AND all_hits > 0)
        AS users_of_90_percent_hits,
    min(request_rank) FILTER (WHERE 10 * requests_so_far >= 9 * all_requests)
        AS users_of_90_percent_requests
FROM ranked
CROSS JOIN (SELECT unnest($top_shares::DOUBLE[]) AS top_share) AS tops
GROUP BY top_share
ORDER BY top_share
