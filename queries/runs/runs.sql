-- runs: the runs of a trace, smallest capacity first, then by policy
-- $trace_id: the trace
-- columns: run_id, asked, code, kvscope, created_at, policy, leaves, params, hindsight, capacity_blocks, setting, steps, kv_groups, engine, outcome, evictions, misses, hit_rate_error, tiers, preemptions, turned_away, deployment
SELECT
    run_id, asked, code, kvscope, created_at, policy, leaves, params, hindsight, capacity_blocks,
    setting, steps, kv_groups, engine, outcome, evictions, misses, hit_rate_error, tiers, preemptions,
    turned_away, deployment
FROM runs
WHERE trace_id = $trace_id
ORDER BY capacity_blocks, policy, run_id
