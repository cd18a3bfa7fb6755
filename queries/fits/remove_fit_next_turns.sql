-- remove_fit_next_turns: drop what the table fit_next_turns holds of this fit
-- $fit_id: the fit
DELETE FROM fit_next_turns WHERE fit_id = $fit_id
