-- repeated_tokens: which requests have messages that begin with tokens of their parent's prompt, and how many
-- $trace_id: the trace
-- columns: request, repeated_tokens
SELECT request, repeated_tokens
FROM request_attributes
WHERE trace_id = $trace_id AND repeated_tokens IS NOT NULL
ORDER BY request
