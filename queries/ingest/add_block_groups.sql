-- add_block_groups: numbers of blocks from the columns of `frame`, for a trace without rows in blocks
-- $trace_id: the trace
INSERT INTO block_groups (trace_id, first_request, last_request, reuses, blocks)
SELECT $trace_id, first_request, last_request, reuses, blocks FROM frame
