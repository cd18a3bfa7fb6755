-- request_attributes: how many requests of a trace have attributes, and how many contradict the trace
-- $trace_id: the trace
-- columns: in_table, wrong, digest
SELECT
    count(*) AS in_table,
    count(*) FILTER (
        each.request NOT BETWEEN 0 AND traces.requests - 1
        OR each.waits_for NOT BETWEEN 0 AND traces.requests - 1
        OR each.salt < 0
        OR each.clock < 0
        OR each.cached_tokens < 0
        OR each.repeated_tokens < 0
        OR each.parts NOT BETWEEN 1 AND (SELECT count(*) FROM parts WHERE trace_id = $trace_id)
        OR NOT isfinite(coalesce(each.ttft_s, 0))
        OR NOT isfinite(coalesce(each.queue_s, 0))
        OR NOT isfinite(coalesce(each.duration_s, 0))
        OR NOT isfinite(coalesce(each.delay_s, 0))
    ) + count(*) - count(DISTINCT each.request) AS wrong,
    bit_xor(hash(each)) AS digest  -- reads every column
FROM request_attributes AS each
JOIN traces ON traces.trace_id = each.trace_id
WHERE each.trace_id = $trace_id
