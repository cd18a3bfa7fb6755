-- mark_used: make this trace the one last worked on
-- $trace_id: the trace
UPDATE traces SET used_at = now()::TIMESTAMP WHERE trace_id = $trace_id
