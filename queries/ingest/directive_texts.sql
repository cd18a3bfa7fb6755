-- directive_texts: the distinct retention directives of a trace, in the order in which `directives` numbers them
-- $trace_id: the trace
-- columns: retention
SELECT DISTINCT retention
FROM request_attributes
WHERE trace_id = $trace_id AND retention IS NOT NULL
ORDER BY retention
