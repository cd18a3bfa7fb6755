-- requests: how many requests a trace has, and how many contradict the trace or its blocks
-- $trace_id: the trace
-- columns: in_table, wrong, digest
SELECT
    count(*) AS in_table,
    count(*) FILTER (
        requests.request >= traces.requests
        OR requests.parent >= requests.request
        OR requests.conversation > requests.request
        OR coalesce(blocks.depth + 1, 0) != requests.blocks
        OR requests.full_blocks > requests.blocks
        OR requests.input_tokens < 1
    ) AS wrong,
    bit_xor(hash(requests)) AS digest  -- reads every column
FROM requests
JOIN traces ON traces.trace_id = requests.trace_id
LEFT JOIN each_block AS blocks ON blocks.trace_id = requests.trace_id AND blocks.block = requests.leaf
WHERE requests.trace_id = $trace_id
