-- block_groups: how many groups of blocks a trace has, and how many contradict the trace
-- $trace_id: the trace
-- columns: in_table, wrong, digest
SELECT
    count(*) AS in_table,
    count(*) FILTER (
        block_groups.first_request < 0
        OR block_groups.last_request < block_groups.first_request
        OR block_groups.last_request >= traces.requests
        OR block_groups.reuses < 0
        OR block_groups.blocks < 1
    ) AS wrong,
    bit_xor(hash(block_groups)) AS digest  -- reads every column
FROM block_groups
JOIN traces ON traces.trace_id = block_groups.trace_id
WHERE block_groups.trace_id = $trace_id
