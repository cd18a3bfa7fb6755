-- add_bad_lines: unusable lines and their reasons
-- $trace_id: the trace
-- $numbers: their line numbers
-- $reasons: their reasons
INSERT INTO bad_lines (trace_id, line, reason)
SELECT $trace_id, unnest($numbers), unnest($reasons)
