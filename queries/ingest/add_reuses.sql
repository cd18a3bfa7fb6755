-- add_reuses: runs of reuse from the columns of `frame`
-- $trace_id: the trace
INSERT INTO reuses (trace_id, request, prev, depth, blocks)
SELECT $trace_id, request, prev, depth, blocks FROM frame
