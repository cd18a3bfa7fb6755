-- schema: which requests are timed by a clock of their session alone

ALTER TABLE requests ADD COLUMN clock INTEGER;  -- from 0; NULL: the trace's own
