-- schema: traces, their requests, the trie of their blocks, and reuse between requests
--
-- A request is one node of the prefix trie: its last block. Everything before it follows from
-- blocks.parent, so the accesses of a trace are stored once and in a fraction of their size.
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
    used_at         TIMESTAMP NOT NULL
);

CREATE TABLE bad_lines (
    trace_id INTEGER NOT NULL,
    line     BIGINT NOT NULL,                 -- from 1
    reason   VARCHAR NOT NULL
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

CREATE TABLE blocks (
    trace_id      INTEGER NOT NULL,
    block         INTEGER NOT NULL,           -- from 1
    parent        INTEGER NOT NULL,           -- 0: the root
    depth         INTEGER NOT NULL,           -- from 0
    hash_id       BIGINT NOT NULL,            -- as given, decimal strings too; of other strings a 64-bit digest
    first_request INTEGER,                    -- NULL: never a full block, so never cacheable
    last_request  INTEGER,
    reuses        INTEGER NOT NULL            -- prompts that found the block already written
);

-- blocks [depth, depth + blocks) of request's prompt were last touched by request prev
CREATE TABLE reuses (
    trace_id INTEGER NOT NULL,
    request  INTEGER NOT NULL,
    prev     INTEGER NOT NULL,
    depth    INTEGER NOT NULL,
    blocks   INTEGER NOT NULL,
    gap_s    DOUBLE NOT NULL                  -- time between the two touches
);

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
