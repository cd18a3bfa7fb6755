-- schema: what a request states about the lifetime of its blocks

ALTER TABLE requests ADD COLUMN retention VARCHAR;  -- JSON; NULL: nothing
