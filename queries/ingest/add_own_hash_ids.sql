-- add_own_hash_ids: the trace's own hash ids of blocks, from the columns of `frame`
-- $trace_id: the trace
INSERT INTO own_hash_ids (trace_id, block, hash_id)
SELECT $trace_id, block, hash_id FROM frame
