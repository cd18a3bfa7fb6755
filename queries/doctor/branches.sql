-- branches: how many branches of its trie a trace has, and how many contradict the trace
-- $trace_id: the trace
-- columns: in_table, wrong, digest
SELECT
    count(*) AS in_table,
    count(*) FILTER (
        each.block NOT BETWEEN 1 AND traces.distinct_blocks
        OR each.parent NOT BETWEEN 0 AND each.block - 1
    ) + count(*) - count(DISTINCT each.block) AS wrong,
    bit_xor(hash(each)) AS digest  -- reads every column
FROM branches AS each
JOIN traces ON traces.trace_id = each.trace_id
WHERE each.trace_id = $trace_id
