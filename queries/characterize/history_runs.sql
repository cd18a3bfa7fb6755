-- history_runs: every run of reuse, how long its blocks had waited and who had touched them
-- $trace_id: the trace
-- columns: request, prev, gap_s, blocks
SELECT request, prev, gap_s, blocks FROM reuses WHERE trace_id = $trace_id
