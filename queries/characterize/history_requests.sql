-- history_requests: when each request arrived, and its category's place in the query `categories`
-- $trace_id: the trace
-- columns: arrival_s, category_index
WITH known AS (
    SELECT
        type,
        turn_bucket,
        (row_number() OVER (ORDER BY type, turn_bucket) - 1)::SMALLINT AS category_index
    FROM (SELECT DISTINCT type, turn_bucket FROM categorized WHERE trace_id = $trace_id)
)
SELECT arrival_s, category_index
FROM categorized
JOIN known USING (type, turn_bucket)
WHERE trace_id = $trace_id
ORDER BY request
