-- remove_fit_models: delete the rows of this fit from fit_models
-- $fit_id: the fit
DELETE FROM fit_models WHERE fit_id = $fit_id
