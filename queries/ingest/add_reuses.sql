-- add_reuses: runs of reuse from the columns of `frame`
-- $trace_id: the trace
INSERT INTO reuses (trace_id, request, prev, depth, blocks, gap_s)
SELECT $trace_id, request, prev, depth, blocks, gap_s FROM frame
