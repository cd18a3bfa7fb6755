-- remove_fits: drop this fit's own row
-- $fit_id: the fit
DELETE FROM fits WHERE fit_id = $fit_id
