-- remove_parts: delete these runs' results by category and over time
-- $run_ids: the runs
DELETE FROM run_parts WHERE run_id IN (SELECT unnest($run_ids::INTEGER[]))
