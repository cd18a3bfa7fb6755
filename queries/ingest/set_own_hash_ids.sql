-- set_own_hash_ids: the trace's own hash ids of blocks, from the columns of `frame`
-- $trace_id: the trace
UPDATE blocks
SET own_hash_id = frame.hash_id
FROM frame
WHERE blocks.trace_id = $trace_id AND blocks.block = frame.block
