-- readings: the stored traces with this content, those read with these options first, the last used first
-- $content: digest of the decompressed bytes, with which a content hash begins
-- $options: the reading options, with which it ends
-- columns: trace_id, name, source, format, block_size, requests, accesses, distinct_blocks, span_s, input_tokens, output_tokens, lineage, has_users, lines, bad_lines, out_of_order, notes, content_hash, models, adapters, salts, tenants, workers, measured_requests
SELECT
    trace_id, name, source, format, block_size, requests, accesses, distinct_blocks, span_s,
    input_tokens, output_tokens, lineage, has_users, lines, bad_lines, out_of_order, notes,
    content_hash, models, adapters, salts, tenants, workers, measured_requests
FROM traces
WHERE starts_with(content_hash, $content || '/')
ORDER BY ends_with(content_hash, '/' || $options) DESC, used_at DESC, trace_id DESC
