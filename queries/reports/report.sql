-- report: what one report shows
-- $report_id: the report
-- columns: sections, file, document
SELECT sections, file, document
FROM reports
WHERE report_id = $report_id
