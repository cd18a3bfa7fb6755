-- add_block_groups: numbers of blocks by first and last request, from the columns of `frame`
-- $trace_id: the trace
INSERT INTO block_groups (trace_id, first_request, last_request, reuses, blocks)
SELECT $trace_id, first_request, last_request, reuses, blocks FROM frame
