-- remove_bad_lines: drop what the table bad_lines holds of this trace
-- $trace_id: the trace
DELETE FROM bad_lines WHERE trace_id = $trace_id
