-- set_deployment: replace the deployment of runs
-- $run_ids: the runs
-- $deployment: see the schema
UPDATE runs
SET deployment = $deployment
WHERE run_id IN (SELECT unnest($run_ids::INTEGER[]))
