-- parts: the parts of a trace's prompts, in order of their numbers; kinds are indices into `part_kinds`
-- $trace_id: the trace
-- columns: above, kind, tokens
SELECT above, (dense_rank() OVER (ORDER BY kind) - 1)::INTEGER AS kind, tokens
FROM parts
WHERE trace_id = $trace_id
ORDER BY part
