-- leaves: where the paths of a trace's requests end, in order of arrival
-- $trace_id: the trace
-- columns: leaf, carried_leaf
SELECT leaf, carried_leaf FROM requests WHERE trace_id = $trace_id ORDER BY request
