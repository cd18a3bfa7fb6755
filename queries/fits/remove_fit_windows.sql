-- remove_fit_windows: drop what the table fit_windows holds of this fit
-- $fit_id: the fit
DELETE FROM fit_windows WHERE fit_id = $fit_id
