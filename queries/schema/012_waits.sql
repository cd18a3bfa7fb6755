-- schema: the request whose end another one waits for

ALTER TABLE requests ADD COLUMN waits_for INTEGER;  -- delay_s counts from its end; NULL: the turn before, or not stated
