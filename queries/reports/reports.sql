-- reports: the reports over all traces, the latest first, without their sections
-- columns: report_id, trace_id, trace, kvscope, created_at, command, summary, duration_s, question, settings
SELECT
    report_id, trace_id, traces.name AS trace, kvscope, created_at, command, summary, duration_s,
    question, settings
FROM reports
JOIN traces USING (trace_id)
ORDER BY report_id DESC
