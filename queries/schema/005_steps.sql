-- schema: times of a run's latency profile that only some profiles have

ALTER TABLE runs ADD COLUMN steps STRUCT (
    floor_s                DOUBLE,  -- least time of the uncached tokens
    request_s              DOUBLE,  -- part of base_s outside of the engine's steps
    decode_base_s          DOUBLE,  -- a step that only decodes; NULL: as a prefill's
    decode_request_s       DOUBLE,
    decode_context_token_s DOUBLE
);
