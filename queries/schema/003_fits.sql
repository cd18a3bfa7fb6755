-- schema: models fitted to a trace, as a whole and by window

CREATE TYPE span_95 AS STRUCT (low DOUBLE, high DOUBLE);

CREATE TYPE conversation_fit AS STRUCT (
    birth_rate_per_s      DOUBLE,
    death_rate_per_s      DOUBLE,
    turn_rate_per_s       DOUBLE,
    next_turn_probability DOUBLE,
    turns                 DOUBLE,   -- mean turns of a conversation
    births                BIGINT,
    requests              BIGINT,
    ks                    DOUBLE,   -- of the waits for a next turn
    fits                  BOOLEAN,
    intervals             MAP(VARCHAR, span_95)
);

CREATE SEQUENCE fit_ids;

CREATE TABLE fits (
    fit_id       INTEGER PRIMARY KEY DEFAULT nextval('fit_ids'),
    trace_id     INTEGER NOT NULL,
    kvscope      VARCHAR NOT NULL,   -- version
    created_at   TIMESTAMP NOT NULL, -- UTC
    warmup       DOUBLE NOT NULL,    -- share of the first requests that is left out
    window_s     DOUBLE,             -- NULL: no windows
    start_s      DOUBLE NOT NULL,
    end_s        DOUBLE NOT NULL,
    conversations conversation_fit   -- NULL: too few turns
);

-- S(t) = 1 - reuse_probability * F(t), F with `params`
CREATE TABLE fit_models (
    fit_id            INTEGER NOT NULL,
    place             INTEGER NOT NULL,  -- from 0
    category          VARCHAR NOT NULL,
    model             VARCHAR NOT NULL,
    start_s           DOUBLE NOT NULL,
    end_s             DOUBLE NOT NULL,
    params            MAP(VARCHAR, DOUBLE) NOT NULL,
    intervals         MAP(VARCHAR, span_95) NOT NULL,  -- 95 % CI; a NULL value: not identified
    n                 BIGINT NOT NULL,   -- touched blocks
    censored          BIGINT NOT NULL,   -- those without a later touch
    runs              BIGINT NOT NULL,
    effective_n       DOUBLE NOT NULL,
    reuse_probability DOUBLE NOT NULL,
    ks                DOUBLE NOT NULL,
    aic               DOUBLE NOT NULL,
    converged         BOOLEAN NOT NULL,
    chosen            BOOLEAN NOT NULL
);

-- the exponential in one window
CREATE TABLE fit_windows (
    fit_id            INTEGER NOT NULL,
    place             INTEGER NOT NULL,
    category          VARCHAR NOT NULL,
    start_s           DOUBLE NOT NULL,
    end_s             DOUBLE NOT NULL,
    n                 BIGINT NOT NULL,
    censored          BIGINT NOT NULL,
    runs              BIGINT NOT NULL,
    effective_n       DOUBLE NOT NULL,
    reuse_probability DOUBLE NOT NULL,
    rate_per_s        DOUBLE NOT NULL,
    ks                DOUBLE NOT NULL,
    next_ks           DOUBLE,            -- from the reuse of the next window
    distance          DOUBLE,            -- of the two windows' reuse
    params            MAP(VARCHAR, DOUBLE) NOT NULL  -- of the model chosen for the category
);

-- tokens that a next turn adds; category NULL: after any
CREATE TABLE fit_next_prompts (
    fit_id   INTEGER NOT NULL,
    place    INTEGER NOT NULL,
    category VARCHAR,
    n        BIGINT NOT NULL,
    mean     DOUBLE NOT NULL,
    values   DOUBLE[] NOT NULL           -- equally likely
);

-- the probability of a next turn, of a category or after a turn
CREATE TABLE fit_next_turns (
    fit_id      INTEGER NOT NULL,
    place       INTEGER NOT NULL,
    category    VARCHAR,
    turn        INTEGER,
    requests    BIGINT NOT NULL,
    continued   BIGINT NOT NULL,
    probability DOUBLE
);
