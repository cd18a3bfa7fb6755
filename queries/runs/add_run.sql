-- add_run: a run's own row
-- $trace_id: the trace
-- $asked: see the schema
-- $code: see the schema
-- $kvscope: see the schema
-- $created_at: see the schema
-- $policy: see the schema
-- $leaves: see the schema
-- $names: names of the parameters
-- $values: their values, in the same order
-- $hindsight: see the schema
-- $capacity_blocks: see the schema
-- $setting: see the schema
-- $steps: see the schema
-- $kv_groups: see the schema
-- $engine: see the schema
-- $outcome: see the schema
-- $evictions: see the schema
-- $misses: see the schema
-- $hit_rate_error: see the schema
-- $tiers: see the schema
-- $preemptions: see the schema
-- $turned_away: see the schema
-- $deployment: see the schema
-- columns: run_id
INSERT INTO runs (
    trace_id, asked, code, kvscope, created_at, policy, leaves, params, hindsight,
    capacity_blocks, setting, steps, kv_groups, engine, outcome, evictions, misses, hit_rate_error,
    tiers, preemptions, turned_away, deployment
)
VALUES (
    $trace_id, $asked, $code, $kvscope, $created_at, $policy, $leaves,
    map($names::VARCHAR[], $values::DOUBLE[]), $hindsight, $capacity_blocks, $setting, $steps,
    $kv_groups, $engine, $outcome, $evictions, $misses, $hit_rate_error, $tiers, $preemptions,
    $turned_away, $deployment
)
RETURNING run_id
