-- blocks: how many blocks a trace has, and how many runs of them contradict the trace or those before
-- $trace_id: the trace
-- columns: in_table, wrong, digest
SELECT
    coalesce(sum(each.blocks), 0)::BIGINT AS in_table,
    count(*) FILTER (
        each.blocks < 1
        OR each.reuses NOT BETWEEN 0 AND traces.requests
        OR each.depth NOT BETWEEN 0 AND traces.accesses - each.blocks
    ) + (
        SELECT count(*) FILTER (block != block_after)
        FROM (
            SELECT block, lag(block::BIGINT + blocks, 1, 1) OVER (ORDER BY block) AS block_after
            FROM blocks
            WHERE trace_id = $trace_id
        )
    ) AS wrong,
    bit_xor(hash(each)) AS digest  -- reads every column
FROM blocks AS each
JOIN traces ON traces.trace_id = each.trace_id
WHERE each.trace_id = $trace_id
