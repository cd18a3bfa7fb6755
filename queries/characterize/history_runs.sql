-- history_runs: every run of reuse: request, previous request, gap and number of blocks
-- $trace_id: the trace
-- columns: request, prev, gap_s, blocks
SELECT request, prev, gap_s, blocks FROM reuses WHERE trace_id = $trace_id
