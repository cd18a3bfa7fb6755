-- remove_fit_next_prompts: delete the rows of this fit from fit_next_prompts
-- $fit_id: the fit
DELETE FROM fit_next_prompts WHERE fit_id = $fit_id
