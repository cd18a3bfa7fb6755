-- participants: conversation and user of each request, in order of arrival
-- $trace_id: the trace
-- columns: conversation, user_id, has_user
SELECT conversation, coalesce(user_id, 0) AS user_id, user_id IS NOT NULL AS has_user
FROM requests
WHERE trace_id = $trace_id
ORDER BY request
