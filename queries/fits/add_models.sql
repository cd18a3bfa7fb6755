-- add_models: a fit's models, every category's and distribution's
-- $fit_id: the fit
-- $rows: structs of category, model, start_s, end_s, params, intervals, n, censored, runs, effective_n, reuse_probability, ks, aic, converged, chosen, in order
INSERT INTO fit_models (
    fit_id, place, category, model, start_s, end_s, params, intervals, n, censored, runs,
    effective_n, reuse_probability, ks, aic, converged, chosen
)
SELECT
    $fit_id, place - 1, row.category, row.model, row.start_s, row.end_s, row.params,
    row.intervals, row.n, row.censored, row.runs, row.effective_n, row.reuse_probability,
    row.ks, row.aic, row.converged, row.chosen
FROM (SELECT unnest($rows) AS row, generate_subscripts($rows, 1) AS place)
