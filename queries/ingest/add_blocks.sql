-- add_blocks: runs of the trie's blocks from the columns of `frame`
-- $trace_id: the trace
INSERT INTO blocks (trace_id, block, depth, hash_id, reuses, blocks)
SELECT $trace_id, block, depth, hash_id, reuses, blocks FROM frame
