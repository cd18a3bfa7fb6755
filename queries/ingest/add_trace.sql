-- add_trace: a trace's own row
-- $name: see the schema
-- $content_hash: see the schema
-- $source: see the schema
-- $source_bytes: see the schema
-- $format: see the schema
-- $block_size: see the schema
-- $requests: see the schema
-- $accesses: see the schema
-- $distinct_blocks: see the schema
-- $span_s: see the schema
-- $input_tokens: see the schema
-- $output_tokens: see the schema
-- $lineage: see the schema
-- $has_users: see the schema
-- $lines: see the schema
-- $bad_lines: see the schema
-- $out_of_order: see the schema
-- $notes: see the schema
-- $models: see the schema
-- $adapters: see the schema
-- $salts: see the schema
-- $tenants: see the schema
-- $workers: see the schema
-- $measured_requests: see the schema
-- columns: trace_id, name, source, format, block_size, requests, accesses, distinct_blocks, span_s, input_tokens, output_tokens, lineage, has_users, lines, bad_lines, out_of_order, notes, content_hash, models, adapters, salts, tenants, workers, measured_requests
INSERT INTO traces (
    name, content_hash, source, source_bytes, format, block_size, requests, accesses,
    distinct_blocks, span_s, input_tokens, output_tokens, lineage, has_users, lines, bad_lines,
    out_of_order, notes, models, adapters, salts, tenants, workers, measured_requests,
    ingested_at, used_at
)
VALUES (
    $name, $content_hash, $source, $source_bytes, $format, $block_size, $requests, $accesses,
    $distinct_blocks, $span_s, $input_tokens, $output_tokens, $lineage, $has_users, $lines,
    $bad_lines, $out_of_order, $notes, $models, $adapters, $salts, $tenants, $workers,
    $measured_requests, now()::TIMESTAMP, now()::TIMESTAMP
)
RETURNING
    trace_id, name, source, format, block_size, requests, accesses, distinct_blocks, span_s,
    input_tokens, output_tokens, lineage, has_users, lines, bad_lines, out_of_order, notes,
    content_hash, models, adapters, salts, tenants, workers, measured_requests
