-- remove_fit_windows: delete the rows of this fit from fit_windows
-- $fit_id: the fit
DELETE FROM fit_windows WHERE fit_id = $fit_id
