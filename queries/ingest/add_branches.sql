-- add_branches: blocks whose parents are not those numbered before them, from the columns of `frame`
-- $trace_id: the trace
INSERT INTO branches (trace_id, block, parent)
SELECT $trace_id, block, parent FROM frame
