-- parts: results of runs by category and over time
-- $run_ids: the runs
-- columns: run_id, category, start_s, length_s, outcome
SELECT run_id, category, start_s, length_s, outcome
FROM run_parts
WHERE run_id IN (SELECT unnest($run_ids::INTEGER[]))
ORDER BY run_id, place
