-- branches: where the paths of a trace branch off its prefix trie, in order of block number
-- $trace_id: the trace
-- columns: block, parent
SELECT block, parent FROM branches WHERE trace_id = $trace_id ORDER BY block
