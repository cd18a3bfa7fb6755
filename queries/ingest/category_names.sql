-- category_names: the categories of a trace, in the order in which `prompts` numbers them
-- $trace_id: the trace
-- columns: category
SELECT category
FROM (SELECT DISTINCT type, turn_bucket, category FROM categorized WHERE trace_id = $trace_id)
ORDER BY type, turn_bucket
