-- remove_fits: delete this fit's own row
-- $fit_id: the fit
DELETE FROM fits WHERE fit_id = $fit_id
