-- hash_ids: the hash id of each block of a trace, in order of block number
-- $trace_id: the trace
-- columns: hash_id
SELECT hash_id FROM blocks WHERE trace_id = $trace_id ORDER BY block
