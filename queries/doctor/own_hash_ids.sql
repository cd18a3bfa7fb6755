-- own_hash_ids: how many blocks have a hash id of their tenant's, and how many contradict the trace
-- $trace_id: the trace
-- columns: in_table, wrong, digest
SELECT
    count(*) AS in_table,
    count(*) FILTER (each.block NOT BETWEEN 1 AND traces.distinct_blocks)
    + count(*) - count(DISTINCT each.block) AS wrong,
    bit_xor(hash(each)) AS digest  -- reads every column
FROM own_hash_ids AS each
JOIN traces ON traces.trace_id = each.trace_id
WHERE each.trace_id = $trace_id
