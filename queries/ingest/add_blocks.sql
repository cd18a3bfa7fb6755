-- add_blocks: the trie's blocks from the columns of `frame`
-- $trace_id: the trace
INSERT INTO blocks (trace_id, block, depth, hash_id, reuses)
SELECT $trace_id, block, depth, hash_id, reuses FROM frame
