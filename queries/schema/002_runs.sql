-- schema: results of replays: a run is one policy at one capacity over one trace

CREATE TYPE percentiles AS STRUCT (p50 DOUBLE, p90 DOUBLE, p95 DOUBLE, p99 DOUBLE);

CREATE TYPE outcome AS STRUCT (
    requests          BIGINT,
    hit_tokens        BIGINT,
    total_tokens      BIGINT,
    token_hit_rate    DOUBLE,       -- 0 to 1, as the other rates
    block_hit_rate    DOUBLE,
    request_hit_rate  DOUBLE,
    uncached_tokens   percentiles,
    ttft_ms           percentiles,  -- on an idle engine
    queued_ttft_ms    percentiles,  -- under the trace's load; NULL where it has no times
    tel_ms            DOUBLE,       -- NULL without an SLO
    violations        BIGINT,
    queued_tel_ms     DOUBLE,
    queued_violations BIGINT
);

CREATE TYPE run_setting AS STRUCT (
    definition STRUCT (
        name            VARCHAR,
        weight          VARCHAR,    -- token | block | request
        warmup          DOUBLE,
        partial         BOOLEAN,
        last_token_rule BOOLEAN,
        outputs         VARCHAR,    -- carried | ignored
        flat            BOOLEAN
    ),
    latency          VARCHAR,       -- the profile's name, then its parameters
    base_s           DOUBLE,
    per_token_s      DOUBLE,
    per_token_pair_s DOUBLE,
    slo_s            DOUBLE,
    rate_scale       DOUBLE,
    isolate          VARCHAR,       -- user | conversation | NULL
    sample_rate      DOUBLE,        -- 1: the whole trace
    coarsen          INTEGER,       -- blocks merged into one
    capacity_model   VARCHAR,       -- cache | engine
    max_num_seqs     BIGINT,        -- vLLM's limits; NULL but for engine
    max_num_batched_tokens BIGINT,
    tiers            VARCHAR,       -- as requested; empty: one cache
    tier_mode        VARCHAR,       -- exclusive | write-through | value of --offload | NULL
    block_bytes      BIGINT         -- bytes of a block, for reads from tiers
);

CREATE TYPE tier AS STRUCT (
    name             VARCHAR,
    policy           VARCHAR,
    capacity_blocks  BIGINT,
    ttl_s            DOUBLE,
    read_latency_ms  DOUBLE,
    read_bytes_per_s DOUBLE,        -- NULL: unlimited
    hit_blocks       BIGINT,
    hit_tokens       BIGINT,
    token_hit_rate   DOUBLE,        -- of all input tokens
    transfer_ms      DOUBLE,        -- sum over all counted requests
    read_bytes       BIGINT,
    evictions        BIGINT,
    demotions        BIGINT
);

CREATE TYPE misses AS STRUCT (
    evicted_tokens BIGINT, diverged_tokens BIGINT, cold_tokens BIGINT, tail_tokens BIGINT
);

CREATE SEQUENCE run_ids;

CREATE TABLE runs (
    run_id          INTEGER PRIMARY KEY DEFAULT nextval('run_ids'),
    trace_id        INTEGER NOT NULL,
    asked           VARCHAR NOT NULL,  -- digest of policy, parameters, capacity and setting
    code            VARCHAR NOT NULL,  -- digest of the sources of the replay
    kvscope         VARCHAR NOT NULL,  -- version
    created_at      TIMESTAMP NOT NULL, -- UTC
    policy          VARCHAR NOT NULL,
    leaves          VARCHAR NOT NULL,  -- leaf | any
    params          MAP(VARCHAR, DOUBLE) NOT NULL,
    hindsight       BOOLEAN NOT NULL,
    capacity_blocks BIGINT NOT NULL,
    setting         run_setting NOT NULL,
    outcome         outcome NOT NULL,
    evictions       BIGINT NOT NULL,   -- blocks
    misses          misses,
    hit_rate_error  DOUBLE,            -- NULL: exact
    tiers           tier[],            -- the first on top; NULL: one cache
    preemptions     BIGINT,            -- NULL but for engine, as the next
    turned_away     BIGINT             -- requests that need more than all blocks
);

-- the same figures for a part of the requests: one category, or one window of time
CREATE TABLE run_parts (
    run_id   INTEGER NOT NULL,
    place    INTEGER NOT NULL,         -- from 0, categories first
    category VARCHAR,
    start_s  DOUBLE,
    length_s DOUBLE,
    outcome  outcome NOT NULL
);
