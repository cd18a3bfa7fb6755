-- add_fit: a fit's own row
-- $trace_id: the trace
-- $kvscope: see the schema
-- $created_at: see the schema
-- $warmup: see the schema
-- $window_s: see the schema
-- $start_s: see the schema
-- $end_s: see the schema
-- $conversations: see the schema
-- columns: fit_id
INSERT INTO fits (
    trace_id, kvscope, created_at, warmup, window_s, start_s, end_s, conversations
)
VALUES ($trace_id, $kvscope, $created_at, $warmup, $window_s, $start_s, $end_s, $conversations)
RETURNING fit_id
