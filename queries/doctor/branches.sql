-- branches: how many branches of its trie a trace has, and how many contradict the trace
-- $trace_id: the trace
-- columns: in_table, wrong, digest
SELECT
    count(*) AS in_table,
    count(*) FILTER (
        branches.block NOT BETWEEN 1 AND traces.distinct_blocks
        OR branches.parent NOT BETWEEN 0 AND branches.block - 1
    ) AS wrong,
    bit_xor(hash(branches)) AS digest  -- reads every column
FROM branches
JOIN traces ON traces.trace_id = branches.trace_id
WHERE branches.trace_id = $trace_id
