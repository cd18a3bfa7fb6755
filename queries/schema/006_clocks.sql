-- schema: which requests are timed by a clock of their session alone

ALTER TABLE requests ADD COLUMN IF NOT EXISTS clock INTEGER;  -- from 0; NULL: the trace's own

CREATE OR REPLACE VIEW categorized AS
SELECT
    *,
    CASE
        WHEN turn <= 3 THEN turn::VARCHAR
        WHEN turn <= 6 THEN '4-6'
        ELSE '7+'
    END AS turn_bucket,
    type || ' ' || turn_bucket AS category
FROM requests;
