-- add_parts: the parts of a trace's prompts, from the columns of `frame`, whose kinds are indices
-- $trace_id: the trace
-- $kind_names: the kinds of parts, by index
INSERT INTO parts (trace_id, part, above, kind, tokens)
SELECT $trace_id, part, above, ($kind_names)[kind + 1], tokens FROM frame
