-- remove_blocks: drop what the table blocks holds of this trace
-- $trace_id: the trace
DELETE FROM blocks WHERE trace_id = $trace_id
