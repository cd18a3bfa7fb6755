-- add_validation: a validation's own row
-- $trace_id: the trace
-- $kvscope: see the schema
-- $created_at: see the schema
-- $engine: see the schema
-- $pace: see the schema
-- $forced_outputs: see the schema
-- $latency: see the schema
-- $tolerance: see the schema
-- $slo_s: see the schema
-- $verdict: see the schema
-- $ended: see the schema
-- $deployment: see the schema
-- columns: validation_id
INSERT INTO validations (
    trace_id, kvscope, created_at, engine, pace, forced_outputs, latency, tolerance, slo_s, verdict,
    ended, deployment
)
VALUES (
    $trace_id, $kvscope, $created_at, $engine, $pace, $forced_outputs, $latency, $tolerance, $slo_s,
    $verdict, $ended, $deployment
)
RETURNING validation_id
