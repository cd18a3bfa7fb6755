-- add_next_prompts: a fit's next prompts
-- $fit_id: the fit
-- $rows: structs of category, n, mean, values, in order
INSERT INTO fit_next_prompts (
    fit_id, place, category, n, mean, values
)
SELECT
    $fit_id, place - 1, row.category, row.n, row.mean, row.values
FROM (SELECT unnest($rows) AS row, generate_subscripts($rows, 1) AS place)
