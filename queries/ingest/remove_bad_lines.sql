-- remove_bad_lines: delete the rows of this trace from bad_lines
-- $trace_id: the trace
DELETE FROM bad_lines WHERE trace_id = $trace_id
