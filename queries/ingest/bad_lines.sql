-- bad_lines: the stored unusable lines of a trace
-- $trace_id: the trace
-- columns: line, reason
SELECT line, reason FROM bad_lines WHERE trace_id = $trace_id ORDER BY line
