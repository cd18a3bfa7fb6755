-- add_report: a report of a command
-- $trace_id: the trace
-- $kvscope: see the schema
-- $created_at: see the schema
-- $command: see the schema
-- $summary: see the schema
-- $duration_s: see the schema
-- $sections: see the schema
-- $file: see the schema
-- $question: see the schema
-- $settings: see the schema
-- $document: see the schema
-- columns: report_id
INSERT INTO reports (
    trace_id, kvscope, created_at, command, summary, duration_s, sections, file,
    question, settings, document
)
VALUES (
    $trace_id, $kvscope, $created_at, $command, $summary, $duration_s, $sections, $file,
    $question, $settings, $document
)
RETURNING report_id
