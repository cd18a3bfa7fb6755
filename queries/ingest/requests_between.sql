-- requests_between: the requests that arrive in a time range
-- $trace_id: the trace
-- $from_s: seconds since the trace's start
-- $until_s: likewise; requests at that time are not in it
-- columns: first, after
SELECT min(request) AS first, max(request) + 1 AS after
FROM requests
WHERE trace_id = $trace_id AND arrival_s >= $from_s AND arrival_s < $until_s
