-- next_turns: requests with a next turn, by category and window
-- $trace_id: the trace
-- $window_s: length of a window
-- $last_window: number of the last window, from 0; it also takes what arrives after its end
-- $settled_until_s: requests up to here are old enough for their next turn to be in the trace
-- columns: type, turn_bucket, category, window_index, requests, continued, settled_requests, settled_continued
SELECT
    turns.type,
    turns.turn_bucket,
    turns.type || ' ' || turns.turn_bucket AS category,
    least(floor(turns.arrival_s / $window_s), $last_window)::BIGINT AS window_index,
    count(*) AS requests,
    count(next.parent) AS continued,
    count(*) FILTER (WHERE turns.arrival_s <= $settled_until_s) AS settled_requests,
    count(next.parent) FILTER (WHERE turns.arrival_s <= $settled_until_s) AS settled_continued
FROM categorized AS turns
LEFT JOIN (
    SELECT DISTINCT parent FROM requests WHERE trace_id = $trace_id AND parent IS NOT NULL
) AS next ON next.parent = turns.request
WHERE turns.trace_id = $trace_id
GROUP BY turns.type, turns.turn_bucket, window_index
ORDER BY turns.type, turns.turn_bucket, window_index
