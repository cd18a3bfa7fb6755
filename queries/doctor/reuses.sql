-- reuses: how many runs of reuse a trace has, and how many contradict its requests
-- $trace_id: the trace
-- columns: in_table, wrong, digest
SELECT
    count(*) AS in_table,
    count(*) FILTER (
        requests.request IS NULL
        OR each.prev NOT BETWEEN 0 AND each.request - 1
        OR each.depth < 0
        OR each.blocks < 1
        OR each.depth::BIGINT + each.blocks > requests.blocks
    ) AS wrong,
    bit_xor(hash(each)) AS digest  -- reads every column
FROM reuses AS each
LEFT JOIN requests
    ON requests.trace_id = each.trace_id AND requests.request = each.request
WHERE each.trace_id = $trace_id
