-- part_kinds: the kinds of parts of a trace's prompts
-- $trace_id: the trace
-- columns: kind
SELECT DISTINCT kind FROM parts WHERE trace_id = $trace_id ORDER BY kind
