-- add_bad_lines: lines that could not be used, and why
-- $trace_id: the trace
-- $numbers: where they are
-- $reasons: a reason each
INSERT INTO bad_lines (trace_id, line, reason)
SELECT $trace_id, unnest($numbers), unnest($reasons)
