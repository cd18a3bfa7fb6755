-- schema: the version of an engine that was simulated in another way than the newest

ALTER TABLE runs ADD COLUMN engine VARCHAR;  -- as vllm@0.22; NULL: as the newest
