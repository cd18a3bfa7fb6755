-- schema: the deployment that a run or a validation is of

-- the keys of kvscope.toml that are stated, as JSON; NULL: a cache study
ALTER TABLE runs ADD COLUMN deployment VARCHAR;
ALTER TABLE validations ADD COLUMN deployment VARCHAR;
