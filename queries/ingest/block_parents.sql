-- block_parents: the prefix trie of a trace, each block's parent, in order of block number
-- $trace_id: the trace
-- columns: parent
SELECT parent FROM blocks WHERE trace_id = $trace_id ORDER BY block
