-- reuses: how many runs of reuse a trace has, and how many contradict its requests
-- $trace_id: the trace
-- columns: in_table, wrong, digest
SELECT
    count(*) AS in_table,
    count(*) FILTER (
        requests.request IS NULL
        OR reuses.prev >= reuses.request
        OR reuses.depth + reuses.blocks > requests.blocks
    ) AS wrong,
    bit_xor(hash(reuses)) AS digest  -- reads every column
FROM reuses
LEFT JOIN requests
    ON requests.trace_id = reuses.trace_id AND requests.request = reuses.request
WHERE reuses.trace_id = $trace_id
