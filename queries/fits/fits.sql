-- fits: the fits of a trace, the latest first
-- $trace_id: the trace
-- columns: fit_id, kvscope, created_at, warmup, window_s, start_s, end_s, conversations
SELECT fit_id, kvscope, created_at, warmup, window_s, start_s, end_s, conversations
FROM fits
WHERE trace_id = $trace_id
ORDER BY fit_id DESC
