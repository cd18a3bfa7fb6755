-- remove_fit_next_turns: delete the rows of this fit from fit_next_turns
-- $fit_id: the fit
DELETE FROM fit_next_turns WHERE fit_id = $fit_id
