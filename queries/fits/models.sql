-- models: the models of one fit, in order of category, the exponential first
-- $fit_id: the fit
-- columns: category, model, start_s, end_s, params, intervals, n, censored, runs, effective_n, reuse_probability, ks, aic, converged, chosen
SELECT
    category, model, start_s, end_s, params, intervals, n, censored, runs, effective_n,
    reuse_probability, ks, aic, converged, chosen
FROM fit_models
WHERE fit_id = $fit_id
ORDER BY place
