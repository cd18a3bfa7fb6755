-- schema: measurements on real engines, next to their predictions

CREATE SEQUENCE validation_ids;

CREATE TABLE validations (
    validation_id INTEGER PRIMARY KEY DEFAULT nextval('validation_ids'),
    trace_id      INTEGER NOT NULL,
    kvscope       VARCHAR NOT NULL,    -- version
    created_at    TIMESTAMP NOT NULL,  -- UTC
    engine        STRUCT (
        name       VARCHAR,
        version    VARCHAR,
        device     VARCHAR,
        model      VARCHAR,
        blocks     BIGINT,             -- that requests can use
        block_size INTEGER,
        flags      VARCHAR[]
    ) NOT NULL,
    pace          VARCHAR NOT NULL,
    forced_outputs BOOLEAN NOT NULL,
    latency       VARCHAR NOT NULL,
    tolerance     DOUBLE NOT NULL,
    slo_s         DOUBLE,
    verdict       VARCHAR NOT NULL,    -- confirmed, not confirmed, inconclusive
    ended         VARCHAR NOT NULL     -- why it ended early; empty: complete
);

CREATE TYPE validation_figures AS STRUCT (
    hit_tokens     BIGINT,
    token_hit_rate DOUBLE,
    ttft_ms        STRUCT (p50 DOUBLE, p90 DOUBLE, p95 DOUBLE, p99 DOUBLE),
    tel_ms         DOUBLE,
    violations     BIGINT
);

CREATE TABLE validation_runs (
    validation_id       INTEGER NOT NULL,
    place               INTEGER NOT NULL,  -- from 0, in the order of running
    policy              VARCHAR NOT NULL,
    leaves              VARCHAR NOT NULL,
    params              MAP(VARCHAR, DOUBLE) NOT NULL,
    repeat              INTEGER NOT NULL,
    flags               VARCHAR[] NOT NULL,
    predicted           validation_figures NOT NULL,
    measured            validation_figures NOT NULL,
    mismatched_requests BIGINT,            -- NULL: the engine does not report hits
    mismatched_tokens   BIGINT,
    failed_requests     BIGINT NOT NULL,
    ended               VARCHAR NOT NULL,
    -- of each counted request, in order
    predicted_hit_tokens BIGINT[] NOT NULL,
    measured_hit_tokens  BIGINT[] NOT NULL,
    predicted_ttft_s     DOUBLE[] NOT NULL,
    measured_ttft_s      DOUBLE[] NOT NULL
);
