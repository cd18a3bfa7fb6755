-- remove_own_hash_ids: delete the rows of this trace from own_hash_ids
-- $trace_id: the trace
DELETE FROM own_hash_ids WHERE trace_id = $trace_id
