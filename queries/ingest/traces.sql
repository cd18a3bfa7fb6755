-- traces: every stored trace, the one last worked on first
-- columns: trace_id, name, source, format, block_size, requests, accesses, distinct_blocks, span_s, input_tokens, output_tokens, lineage, has_users, lines, bad_lines, out_of_order, notes, content_hash, models, adapters, salts, tenants, workers, measured_requests
SELECT
    trace_id, name, source, format, block_size, requests, accesses, distinct_blocks, span_s,
    input_tokens, output_tokens, lineage, has_users, lines, bad_lines, out_of_order, notes,
    content_hash, models, adapters, salts, tenants, workers, measured_requests
FROM traces
ORDER BY used_at DESC, trace_id DESC
