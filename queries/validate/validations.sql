-- validations: the validations of a trace, the latest first
-- $trace_id: the trace
-- columns: validation_id, kvscope, created_at, engine, pace, forced_outputs, latency, tolerance, slo_s, verdict, ended, deployment
SELECT
    validation_id, kvscope, created_at, engine, pace, forced_outputs, latency, tolerance, slo_s,
    verdict, ended, deployment
FROM validations
WHERE trace_id = $trace_id
ORDER BY validation_id DESC
