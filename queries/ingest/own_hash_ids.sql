-- own_hash_ids: the trace's own hash ids of blocks whose hash ids tell tenants apart
-- $trace_id: the trace
-- columns: block, hash_id
SELECT block, hash_id FROM own_hash_ids WHERE trace_id = $trace_id
