-- remove_fit_next_prompts: drop what the table fit_next_prompts holds of this fit
-- $fit_id: the fit
DELETE FROM fit_next_prompts WHERE fit_id = $fit_id
