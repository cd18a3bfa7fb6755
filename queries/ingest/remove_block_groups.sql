-- remove_block_groups: delete the rows of this trace from block_groups
-- $trace_id: the trace
DELETE FROM block_groups WHERE trace_id = $trace_id
