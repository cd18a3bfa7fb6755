-- schema: traces, their requests, the trie of their blocks, reuse between requests, and results over traces
--
-- A request is one node of the prefix trie: its last block. Everything before it follows from
-- branches, so the accesses of a trace are stored once and in a fraction of their size.
-- Request and block numbers count from the start of their trace: request from 0 in order of
-- arrival, block from 1 (0 is the root: "no block").

CREATE SEQUENCE trace_ids;

CREATE TABLE traces (
    trace_id        INTEGER PRIMARY KEY DEFAULT nextval('trace_ids'),
    name            VARCHAR NOT NULL UNIQUE,
    content_hash    VARCHAR NOT NULL UNIQUE,  -- of the decompressed bytes and the reading options
    source          VARCHAR NOT NULL,         -- path as given, '-' for standard input
    source_bytes    BIGINT NOT NULL,          -- size on disk: cheap first test for "the same file"
    format          VARCHAR NOT NULL,
    block_size      INTEGER NOT NULL,         -- tokens
    requests        BIGINT NOT NULL,
    accesses        BIGINT NOT NULL,          -- hash ids, partial last blocks included
    distinct_blocks BIGINT NOT NULL,
    span_s          DOUBLE NOT NULL,
    input_tokens    BIGINT NOT NULL,
    output_tokens   BIGINT NOT NULL,
    lineage         VARCHAR NOT NULL,         -- given | inferred | none
    has_users       BOOLEAN NOT NULL,
    lines           BIGINT NOT NULL,          -- accepted and rejected, blank ones not counted
    bad_lines       BIGINT NOT NULL,
    out_of_order    BIGINT NOT NULL,          -- requests that arrived before their predecessor
    notes           VARCHAR[] NOT NULL,       -- what was missing or inferred
    ingested_at     TIMESTAMP NOT NULL,
    used_at         TIMESTAMP NOT NULL,
    models          INTEGER,                  -- distinct names, as the next
    adapters        INTEGER,
    salts           INTEGER,
    tenants         INTEGER,                  -- combinations of the three
    workers         INTEGER,
    measured_requests BIGINT,                 -- with any of the measured columns
    checksum        VARCHAR                   -- of what the trace's tables hold; NULL: none was made
);

CREATE TABLE bad_lines (
    trace_id INTEGER NOT NULL,
    line     BIGINT NOT NULL,                 -- from 1
    reason   VARCHAR NOT NULL,
    place    VARCHAR                          -- path:line, in its own file
);

CREATE TABLE requests (
    trace_id       INTEGER NOT NULL,
    request        INTEGER NOT NULL,          -- from 0, in order of arrival
    arrival_s      DOUBLE NOT NULL,           -- from 0
    chat_id        BIGINT,                    -- as given, decimal strings too; of other strings a 64-bit digest
    user_id        BIGINT,                    -- likewise
    type           VARCHAR NOT NULL,          -- 'unknown' where the trace has none
    turn           INTEGER NOT NULL,          -- from 1
    parent         INTEGER,                   -- the request whose conversation this one continues
    conversation   INTEGER NOT NULL,          -- the first request of the conversation
    input_tokens   INTEGER NOT NULL,
    output_tokens  INTEGER NOT NULL,
    blocks         INTEGER NOT NULL,          -- hash ids of the prompt, a partial last one included
    full_blocks    INTEGER NOT NULL,          -- those whose tokens are all in the prompt
    leaf           INTEGER NOT NULL,          -- the prompt's last block, partial or not
    cached_blocks  INTEGER NOT NULL,          -- blocks cached after the turn, outputs included
    carried_leaf   INTEGER NOT NULL,          -- the deepest of them whose identity is known
    carried_blocks INTEGER NOT NULL,          -- depth of carried_leaf + 1
    ideal_blocks   INTEGER NOT NULL           -- leading blocks that an infinite cache would hit
);

-- what only some traces say of their requests: a column without a value takes as long to write as
-- any other
CREATE TABLE request_attributes (
    trace_id        INTEGER NOT NULL,
    request         INTEGER NOT NULL,         -- only those with a value in any column below
    model           VARCHAR,
    adapter         VARCHAR,                  -- LoRA
    salt            INTEGER,                  -- cache salts are numbered, never stored
    worker          VARCHAR,                  -- the engine, replica or rank
    ttft_s          DOUBLE,                   -- measured, as the next
    queue_s         DOUBLE,                   -- from arrival until admitted
    duration_s      DOUBLE,                   -- from arrival to the last token
    cached_tokens   INTEGER,                  -- of the prompt
    delay_s         DOUBLE,                   -- as stated: after the turn before had ended, or `waits_for`
    waits_for       INTEGER,                  -- the request from whose end delay_s counts
    clock           INTEGER,                  -- from 0; NULL: the trace's own
    retention       VARCHAR,                  -- JSON
    repeated_tokens INTEGER,                  -- of the parent's prompt: those that the messages share with it
    parts           INTEGER                   -- the last part of the prompt
);

CREATE VIEW attributed AS
SELECT * FROM requests LEFT JOIN request_attributes USING (trace_id, request);

-- category: (type, turn bucket), the same words everywhere
CREATE VIEW categorized AS
SELECT
    *,
    CASE
        WHEN turn <= 3 THEN turn::VARCHAR
        WHEN turn <= 6 THEN '4-6'
        ELSE '7+'
    END AS turn_bucket,
    type || ' ' || turn_bucket AS category
FROM requests;

-- the parts of prompts (system prompt, tools, messages), a tree as blocks are: prompts that begin
-- with the same parts share them
CREATE TABLE parts (
    trace_id INTEGER NOT NULL,
    part     INTEGER NOT NULL,                -- from 1 (0: none)
    above    INTEGER NOT NULL,                -- the part before
    kind     VARCHAR NOT NULL,                -- template | system | tool 3 | user | assistant | tool result
    tokens   INTEGER NOT NULL                 -- of the prompt, to the part's end
);

-- Blocks in runs: along a path, numbers and hash ids mostly go up by one, so that a tenth of the
-- rows hold the published traces.
CREATE TABLE blocks (
    trace_id INTEGER NOT NULL,
    block    INTEGER NOT NULL,                -- from 1
    depth    INTEGER NOT NULL,                -- from 0
    hash_id  BIGINT NOT NULL,                 -- as given, decimal strings too; of other strings a 64-bit digest
    reuses   INTEGER NOT NULL,                -- prompts that found the block already written
    blocks   INTEGER DEFAULT 1                -- from `block` on; block, depth and hash_id of each are one more than those before
);

CREATE VIEW each_block AS
SELECT
    trace_id,
    (block + step)::INTEGER AS block,
    (depth + step)::INTEGER AS depth,
    hash_id + step AS hash_id,
    reuses
FROM (SELECT *, unnest(range(blocks)) AS step FROM blocks);

-- cacheable blocks, those that were a full block of some request, counted in groups: blocks that
-- follow each other on a path mostly share their first and last request
CREATE TABLE block_groups (
    trace_id      INTEGER NOT NULL,
    first_request INTEGER NOT NULL,
    last_request  INTEGER NOT NULL,
    reuses        INTEGER NOT NULL,
    blocks        BIGINT NOT NULL             -- a group may have several rows
);

-- Where paths branch off: blocks are numbered along paths, so the parent of all others is the block
-- numbered before them.
CREATE TABLE branches (
    trace_id INTEGER NOT NULL,
    block    INTEGER NOT NULL,
    parent   INTEGER NOT NULL                 -- 0: the root
);

CREATE TABLE own_hash_ids (
    trace_id INTEGER NOT NULL,
    block    INTEGER NOT NULL,
    hash_id  BIGINT NOT NULL                  -- as the trace has it, of a tenant's first blocks, whose blocks.hash_id tells tenants apart
);

-- blocks [depth, depth + blocks) of request's prompt were last touched by request prev
CREATE TABLE reuses (
    trace_id INTEGER NOT NULL,
    request  INTEGER NOT NULL,
    prev     INTEGER NOT NULL,
    depth    INTEGER NOT NULL,
    blocks   INTEGER NOT NULL
);

-- what commands on a trace stated of deployment and SLO, for the next one
CREATE TABLE stated (
    trace_id INTEGER NOT NULL PRIMARY KEY,
    options  VARCHAR NOT NULL                 -- JSON, by the name of the option
);

-- results of replays: a run is one policy at one capacity over one trace

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
    turned_away     BIGINT,            -- requests that need more than all blocks
    steps STRUCT (                     -- NULL: a latency profile that has none of these times
        floor_s                DOUBLE, -- least time of the uncached tokens
        request_s              DOUBLE, -- part of base_s outside of the engine's steps
        decode_base_s          DOUBLE, -- a step that only decodes; NULL: as a prefill's
        decode_request_s       DOUBLE,
        decode_context_token_s DOUBLE
    ),
    deployment      VARCHAR,           -- the keys of kvscope.toml that are stated, as JSON; NULL: a cache study
    kv_groups       VARCHAR,           -- as KvGroups.text; NULL: no hybrid model
    engine          VARCHAR            -- as vllm@0.22; NULL: simulated as the newest
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

-- models fitted to a trace, as a whole and by window

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

-- measurements on real engines, next to their predictions

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
    ended         VARCHAR NOT NULL,    -- why it ended early; empty: complete
    deployment    VARCHAR              -- as in runs
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
    measured_ttft_s      DOUBLE[] NOT NULL,
    request_numbers      INTEGER[]         -- in the trace
);

-- reports of commands over a trace, to be opened again

CREATE SEQUENCE report_ids;

CREATE TABLE reports (
    report_id  INTEGER PRIMARY KEY DEFAULT nextval('report_ids'),
    trace_id   INTEGER NOT NULL,
    kvscope    VARCHAR NOT NULL,    -- version
    created_at TIMESTAMP NOT NULL,  -- UTC
    command    VARCHAR NOT NULL,    -- 'kvscope tune'
    summary    VARCHAR NOT NULL,    -- its first sentence
    duration_s DOUBLE NOT NULL,     -- of the computation
    sections   VARCHAR NOT NULL,    -- JSON: titles, sentences, tables and plotly figures
    file       VARCHAR,             -- recommendation.toml; NULL: it has none
    question   VARCHAR,             -- digest of the request
    settings   VARCHAR,             -- '1 x l40s, llama3-8b in bf16, vllm@0.33'
    document   VARCHAR              -- as `--json` prints it
);
