-- block_groups: how many groups of blocks a trace has, and how many contradict the trace
-- $trace_id: the trace
-- columns: in_table, wrong, digest
SELECT
    count(*) AS in_table,
    count(*) FILTER (
        each.first_request < 0
        OR each.last_request NOT BETWEEN each.first_request AND traces.requests - 1
        OR each.reuses NOT BETWEEN 0 AND traces.requests
        OR each.blocks NOT BETWEEN 1 AND traces.distinct_blocks
    ) AS wrong,
    bit_xor(hash(each)) AS digest  -- reads every column
FROM block_groups AS each
JOIN traces ON traces.trace_id = each.trace_id
WHERE each.trace_id = $trace_id
