-- add_next_turns: a fit's probabilities of a next turn
-- $fit_id: the fit
-- $rows: structs of category, turn, requests, continued, probability, in order
INSERT INTO fit_next_turns (
    fit_id, place, category, turn, requests, continued, probability
)
SELECT
    $fit_id, place - 1, row.category, row.turn, row.requests, row.continued, row.probability
FROM (SELECT unnest($rows) AS row, generate_subscripts($rows, 1) AS place)
