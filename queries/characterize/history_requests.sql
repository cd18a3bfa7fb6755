-- history_requests: arrival and category index of each request
-- $trace_id: the trace
-- $categories: the names of all categories of the trace; indices count from 0
-- $first: the first request
-- $end: the first one not any more
-- columns: arrival_s, category_index
WITH known AS (
    SELECT
        unnest($categories::VARCHAR[]) AS category,
        (generate_subscripts($categories::VARCHAR[], 1) - 1)::SMALLINT AS category_index
)
SELECT arrival_s, category_index
FROM categorized
JOIN known USING (category)
WHERE trace_id = $trace_id AND request >= $first AND request < $end
ORDER BY request
