-- own_hash_ids: how many blocks have a hash id of their tenant's, and how many contradict the trace
-- $trace_id: the trace
-- columns: in_table, wrong, digest
SELECT
    count(*) AS in_table,
    count(*) FILTER (own_hash_ids.block NOT BETWEEN 1 AND traces.distinct_blocks) AS wrong,
    bit_xor(hash(own_hash_ids)) AS digest  -- reads every column
FROM own_hash_ids
JOIN traces ON traces.trace_id = own_hash_ids.trace_id
WHERE own_hash_ids.trace_id = $trace_id
