-- last_parts: which requests have prompts whose parts are known, and the last part of each
-- $trace_id: the trace
-- columns: request, parts
SELECT request, parts
FROM request_attributes
WHERE trace_id = $trace_id AND parts IS NOT NULL
ORDER BY request
