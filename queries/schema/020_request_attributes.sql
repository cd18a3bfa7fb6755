-- schema: what only some traces say of their requests, in a table of its own: a column without a value takes as long to write as any other

CREATE TABLE request_attributes (
    trace_id      INTEGER NOT NULL,
    request       INTEGER NOT NULL,  -- only those with a value in any column below
    model         VARCHAR,
    adapter       VARCHAR,           -- LoRA
    salt          INTEGER,           -- cache salts are numbered, never stored
    worker        VARCHAR,           -- the engine, replica or rank
    ttft_s        DOUBLE,            -- measured, as the next
    queue_s       DOUBLE,            -- from arrival until admitted
    duration_s    DOUBLE,            -- from arrival to the last token
    cached_tokens INTEGER,           -- of the prompt
    delay_s       DOUBLE,            -- as stated: after the turn before had ended, or `waits_for`
    waits_for     INTEGER,           -- the request from whose end delay_s counts
    clock         INTEGER,           -- from 0; NULL: the trace's own
    retention     VARCHAR            -- JSON
);

INSERT INTO request_attributes
SELECT
    trace_id, request, model, adapter, salt, worker, ttft_s, queue_s, duration_s, cached_tokens,
    delay_s, waits_for, clock, retention
FROM requests
WHERE coalesce(
    model, adapter, salt::VARCHAR, worker, ttft_s::VARCHAR, queue_s::VARCHAR, duration_s::VARCHAR,
    cached_tokens::VARCHAR, delay_s::VARCHAR, waits_for::VARCHAR, clock::VARCHAR, retention
) IS NOT NULL;

ALTER TABLE requests DROP COLUMN model;
ALTER TABLE requests DROP COLUMN adapter;
ALTER TABLE requests DROP COLUMN salt;
ALTER TABLE requests DROP COLUMN worker;
ALTER TABLE requests DROP COLUMN ttft_s;
ALTER TABLE requests DROP COLUMN queue_s;
ALTER TABLE requests DROP COLUMN duration_s;
ALTER TABLE requests DROP COLUMN cached_tokens;
ALTER TABLE requests DROP COLUMN delay_s;
ALTER TABLE requests DROP COLUMN waits_for;
ALTER TABLE requests DROP COLUMN clock;
ALTER TABLE requests DROP COLUMN retention;

CREATE VIEW attributed AS
SELECT * FROM requests LEFT JOIN request_attributes USING (trace_id, request);

-- category: (type, turn bucket), the same words everywhere
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
