-- add_windows: a fit's exponentials by window
-- $fit_id: the fit
-- $rows: structs of category, start_s, end_s, n, censored, runs, effective_n, reuse_probability, rate_per_s, ks, next_ks, distance, params, in order
INSERT INTO fit_windows (
    fit_id, place, category, start_s, end_s, n, censored, runs, effective_n, reuse_probability,
    rate_per_s, ks, next_ks, distance, params
)
SELECT
    $fit_id, place - 1, row.category, row.start_s, row.end_s, row.n, row.censored, row.runs,
    row.effective_n, row.reuse_probability, row.rate_per_s, row.ks, row.next_ks, row.distance,
    row.params
FROM (SELECT unnest($rows) AS row, generate_subscripts($rows, 1) AS place)
