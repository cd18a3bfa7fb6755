-- report: what one report shows
-- $report_id: the report
-- columns: sections, file
SELECT sections, file
FROM reports
WHERE report_id = $report_id
