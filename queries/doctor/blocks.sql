-- blocks: how many blocks a trace has, and how many contradict the trace or their parent
-- $trace_id: the trace
-- columns: in_table, wrong, digest
SELECT
    count(*) AS in_table,
    count(*) FILTER (
        blocks.block NOT BETWEEN 1 AND traces.distinct_blocks
        OR coalesce(parents.depth + 1, 0) != blocks.depth
    ) AS wrong,
    bit_xor(hash(blocks)) AS digest  -- reads every column
FROM each_block AS blocks
JOIN traces ON traces.trace_id = blocks.trace_id
LEFT JOIN branches ON branches.trace_id = blocks.trace_id AND branches.block = blocks.block
LEFT JOIN each_block AS parents
    ON
        parents.trace_id = blocks.trace_id
        AND parents.block = coalesce(branches.parent, blocks.block - 1)
WHERE blocks.trace_id = $trace_id
