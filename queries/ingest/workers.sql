-- workers: the workers of a trace, in the order in which `measurements` numbers them
-- $trace_id: the trace
-- columns: worker
SELECT DISTINCT worker
FROM request_attributes
WHERE trace_id = $trace_id AND worker IS NOT NULL
ORDER BY worker
