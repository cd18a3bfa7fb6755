-- bad_lines: the stored unusable lines of a trace
-- $trace_id: the trace
-- columns: place, reason
SELECT
    coalesce(bad_lines.place, traces.source || ':' || bad_lines.line) AS place,
    bad_lines.reason
FROM bad_lines
JOIN traces ON traces.trace_id = bad_lines.trace_id
WHERE bad_lines.trace_id = $trace_id
ORDER BY bad_lines.line
