-- bad_lines: the lines of a trace that could not be used, as far as they were kept
-- $trace_id: the trace
-- columns: line, reason
SELECT line, reason FROM bad_lines WHERE trace_id = $trace_id ORDER BY line
