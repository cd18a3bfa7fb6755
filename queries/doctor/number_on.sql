-- number_on: let ids that were copied not be given out again
-- $trace_id: the highest that was copied, as the next
-- $run_id: of a run
-- $fit_id: of a fit
-- $validation_id: of a validation
-- $report_id: of a report
-- columns: trace_id, run_id, fit_id, validation_id, report_id
SELECT
    (SELECT max(nextval('trace_ids')) FROM range($trace_id)) AS trace_id,
    (SELECT max(nextval('run_ids')) FROM range($run_id)) AS run_id,
    (SELECT max(nextval('fit_ids')) FROM range($fit_id)) AS fit_id,
    (SELECT max(nextval('validation_ids')) FROM range($validation_id)) AS validation_id,
    (SELECT max(nextval('report_ids')) FROM range($report_id)) AS report_id
