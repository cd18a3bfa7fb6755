-- directives: the number of each request's retention directives, -1 for none, in order of arrival
-- $trace_id: the trace
-- columns: request, number
SELECT request, if(retention IS NULL, -1, dense_rank() OVER (ORDER BY retention NULLS LAST) - 1)::INTEGER AS number
FROM attributed
WHERE trace_id = $trace_id
ORDER BY request
