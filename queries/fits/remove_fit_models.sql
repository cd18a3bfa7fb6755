-- remove_fit_models: drop what the table fit_models holds of this fit
-- $fit_id: the fit
DELETE FROM fit_models WHERE fit_id = $fit_id
