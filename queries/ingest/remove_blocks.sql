-- remove_blocks: delete the rows of this trace from blocks
-- $trace_id: the trace
DELETE FROM blocks WHERE trace_id = $trace_id
