-- own_hash_ids: the hash id of each block as the trace has it, whatever the tenant, by block number
-- $trace_id: the trace
-- columns: hash_id
SELECT coalesce(own_hash_id, hash_id) AS hash_id
FROM blocks
WHERE trace_id = $trace_id
ORDER BY block
