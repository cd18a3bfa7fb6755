-- hash_ids: the hash ids of a trace's blocks in runs that go up by one, in order of block number
-- $trace_id: the trace
-- columns: hash_id, blocks
SELECT hash_id, blocks FROM blocks WHERE trace_id = $trace_id ORDER BY block
