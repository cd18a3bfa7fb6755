-- trace_count: number of stored traces
-- columns: traces
SELECT count(*) AS traces FROM traces
