-- traces: a trace's own row, and whether what it says of its requests contradicts those
-- $trace_id: the trace
-- columns: in_table, wrong, digest
SELECT
    count(*) AS in_table,
    count(*) FILTER (
        each.block_size < 1
        OR each.requests NOT BETWEEN 1 AND 100000000
        OR each.distinct_blocks NOT BETWEEN 0 AND each.accesses
        OR each.lineage NOT IN ('given', 'inferred', 'none')
        OR each.requests != sums.requests
        OR each.span_s != sums.span_s
        OR each.input_tokens != sums.input_tokens
        OR each.output_tokens != sums.output_tokens
        OR each.accesses != sums.accesses
        OR least(each.models, each.adapters, each.salts, each.tenants, each.workers, each.bad_lines) < 0
        OR each.measured_requests NOT BETWEEN 0 AND each.requests
        OR each.out_of_order NOT BETWEEN 0 AND each.requests
        OR each.bad_lines > each.lines
        OR each.source_bytes < 0
    ) AS wrong,
    bit_xor(hash(each)) AS digest
FROM (
    SELECT * EXCLUDE (ingested_at, used_at, checksum)
    FROM traces
    WHERE trace_id = $trace_id
) AS each
CROSS JOIN (
    SELECT
        count(*) AS requests,
        max(arrival_s) AS span_s,
        sum(input_tokens) AS input_tokens,
        sum(output_tokens) AS output_tokens,
        sum(blocks) AS accesses
    FROM requests
    WHERE trace_id = $trace_id
) AS sums
