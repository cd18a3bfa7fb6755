-- parts: how many parts of prompts a trace has, and how many contradict the trace
-- $trace_id: the trace
-- columns: in_table, wrong, digest
SELECT
    count(*) AS in_table,
    count(*) FILTER (
        each.part < 1
        OR each.above NOT BETWEEN 0 AND each.part - 1
        OR each.tokens <= coalesce(before.tokens, 0)
        OR each.above > 0 AND before.part IS NULL
    ) + count(*) - count(DISTINCT each.part) + coalesce(max(each.part), 0) - count(*) AS wrong,
    bit_xor(hash(each)) AS digest  -- reads every column
FROM parts AS each
LEFT JOIN parts AS before ON before.trace_id = each.trace_id AND before.part = each.above
WHERE each.trace_id = $trace_id
