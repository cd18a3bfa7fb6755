-- remove_reports: delete the reports over a trace but the latest ones
-- $trace_id: the trace
-- $kept: how many stay
DELETE FROM reports
WHERE
    trace_id = $trace_id
    AND report_id NOT IN (
        SELECT report_id FROM reports WHERE trace_id = $trace_id
        ORDER BY report_id DESC LIMIT $kept
    )
