-- add_parts: a run's results by category and over time
-- $run_id: the run
-- $parts: structs of category, start_s, length_s and outcome, in order
INSERT INTO run_parts (run_id, place, category, start_s, length_s, outcome)
SELECT $run_id, place - 1, part.category, part.start_s, part.length_s, part.outcome
FROM (SELECT unnest($parts) AS part, generate_subscripts($parts, 1) AS place)
