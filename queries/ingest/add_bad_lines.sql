-- add_bad_lines: unusable lines and their reasons
-- $trace_id: the trace
-- $numbers: their line numbers
-- $places: their files and their numbers there, as path:line
-- $reasons: their reasons
INSERT INTO bad_lines (trace_id, line, place, reason)
SELECT $trace_id, unnest($numbers), unnest($places), unnest($reasons)
