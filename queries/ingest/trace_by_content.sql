-- trace_by_content: the stored trace with this content
-- $content_hash: digest of the content, format and reading options
-- columns: trace_id, name, source, format, block_size, requests, accesses, distinct_blocks, span_s, input_tokens, output_tokens, lineage, has_users, lines, bad_lines, out_of_order, notes, content_hash, models, adapters, salts, tenants, workers, measured_requests
SELECT
    trace_id, name, source, format, block_size, requests, accesses, distinct_blocks, span_s,
    input_tokens, output_tokens, lineage, has_users, lines, bad_lines, out_of_order, notes,
    content_hash, models, adapters, salts, tenants, workers, measured_requests
FROM traces
WHERE content_hash = $content_hash
