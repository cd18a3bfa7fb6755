-- history_requests: arrival, category index and earlier turn of each request, in any order
-- $trace_id: the trace
-- $categories: the names of all categories of the trace; indices count from 0
-- $first: the first request
-- $end: the first one not any more
-- columns: request, arrival_s, category_index, parent
WITH known AS (
    SELECT
        unnest($categories::VARCHAR[]) AS category,
        (generate_subscripts($categories::VARCHAR[], 1) - 1)::SMALLINT AS category_index
)
SELECT request, arrival_s, category_index, coalesce(parent, -1) AS parent
FROM categorized
JOIN known USING (category)
WHERE trace_id = $trace_id AND request >= $first AND request < $end
