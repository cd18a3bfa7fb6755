-- own_hash_ids: the hash id of each block as the trace has it, whatever the tenant, by block number
-- $trace_id: the trace
-- columns: hash_id
SELECT coalesce(own.hash_id, blocks.hash_id) AS hash_id
FROM blocks
LEFT JOIN own_hash_ids AS own ON own.trace_id = $trace_id AND own.block = blocks.block
WHERE blocks.trace_id = $trace_id
ORDER BY blocks.block
