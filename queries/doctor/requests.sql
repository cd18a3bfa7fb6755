-- requests: how many requests a trace has, and how many contradict the trace or those before them
-- $trace_id: the trace
-- columns: in_table, wrong, digest
SELECT
    count(*) AS in_table,
    count(*) FILTER (
        each.parent NOT BETWEEN 0 AND each.request - 1
        OR each.conversation NOT BETWEEN 0 AND each.request
        OR each.turn < 1
        OR each.input_tokens NOT BETWEEN 1 AND 1 << 24
        OR each.output_tokens NOT BETWEEN 0 AND 1 << 24
        OR each.blocks NOT BETWEEN 0 AND 1 << 20
        OR each.full_blocks NOT BETWEEN 0 AND each.blocks
        OR each.full_blocks > each.input_tokens // traces.block_size
        OR each.ideal_blocks NOT BETWEEN 0 AND each.blocks
        OR each.cached_blocks
        NOT BETWEEN 0 AND (each.input_tokens + each.output_tokens) // traces.block_size + 1
        OR each.carried_blocks NOT BETWEEN 0 AND each.cached_blocks
        OR each.leaf NOT BETWEEN 0 AND traces.distinct_blocks
        OR each.carried_leaf NOT BETWEEN 0 AND traces.distinct_blocks
        OR (each.leaf = 0) != (each.blocks = 0)
        OR (each.carried_leaf = 0) != (each.carried_blocks = 0)
    ) + (
        SELECT
            count(*) FILTER (
                NOT isfinite(arrival_s) OR arrival_s < arrival_before_s
                OR request != coalesce(request_before + 1, 0)
            )
        FROM (
            SELECT
                request,
                arrival_s,
                lag(request) OVER (ORDER BY request) AS request_before,
                lag(arrival_s, 1, 0) OVER (ORDER BY request) AS arrival_before_s
            FROM requests
            WHERE trace_id = $trace_id
        )
    ) AS wrong,
    bit_xor(hash(each)) AS digest  -- reads every column
FROM requests AS each
JOIN traces ON traces.trace_id = each.trace_id
WHERE each.trace_id = $trace_id
