-- trace_count: how many traces the store holds
-- columns: traces
SELECT count(*) AS traces FROM traces
