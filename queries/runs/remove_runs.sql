-- remove_runs: delete these runs
-- $run_ids: the runs
DELETE FROM runs WHERE run_id IN (SELECT unnest($run_ids::INTEGER[]))
