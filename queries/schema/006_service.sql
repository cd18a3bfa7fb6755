-- schema: which model, adapter and worker served a request, and how fast, where a trace says so;
-- and which deployment a run or a validation is of

ALTER TABLE requests ADD COLUMN model VARCHAR;
ALTER TABLE requests ADD COLUMN adapter VARCHAR;        -- LoRA
ALTER TABLE requests ADD COLUMN salt INTEGER;           -- cache salts are numbered, never stored
ALTER TABLE requests ADD COLUMN worker VARCHAR;         -- the engine, replica or rank
ALTER TABLE requests ADD COLUMN ttft_s DOUBLE;          -- measured, as the next
ALTER TABLE requests ADD COLUMN queue_s DOUBLE;         -- from arrival until admitted
ALTER TABLE requests ADD COLUMN duration_s DOUBLE;      -- from arrival to the last token
ALTER TABLE requests ADD COLUMN cached_tokens INTEGER;  -- of the prompt

-- NULL: stored before these were kept
ALTER TABLE traces ADD COLUMN models INTEGER;           -- distinct names, as the next
ALTER TABLE traces ADD COLUMN adapters INTEGER;
ALTER TABLE traces ADD COLUMN salts INTEGER;
ALTER TABLE traces ADD COLUMN tenants INTEGER;          -- combinations of the three
ALTER TABLE traces ADD COLUMN workers INTEGER;
ALTER TABLE traces ADD COLUMN measured_requests BIGINT; -- with any of the measured columns

-- the keys of kvscope.toml that are stated, as JSON; NULL: a cache study
ALTER TABLE runs ADD COLUMN deployment VARCHAR;
ALTER TABLE validations ADD COLUMN deployment VARCHAR;
