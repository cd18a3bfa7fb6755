-- parquet_rows: the rows of a Parquet file, in file order, with those columns of kvscope's and Baseten's that it has
-- $path: the file; a pattern (*, ?, [) would name several
-- columns: input_tokens, output_tokens, arrival_s, hash_ids, chat_id, parent_chat_id, session_id, delay_s, user_id, type, turn, block_size, scope, model, adapter, cache_salt, worker, ttft_s, queue_s, duration_s, cached_tokens, clock, waits_for, retention, repeated_tokens, parts, timestamp_start_unix_ms, total_hashes, provided_session_id, poor_man_session_id, model_name, org_id, duration_ttft_ms, duration_e2e_ms, cached_tokens_reference
SELECT
    COLUMNS('^(input_tokens|output_tokens|arrival_s|hash_ids|chat_id|parent_chat_id|session_id|delay_s|user_id|type|turn|block_size|scope|model|adapter|cache_salt|worker|ttft_s|queue_s|duration_s|cached_tokens|clock|waits_for|retention|repeated_tokens|parts|timestamp_start_unix_ms|total_hashes|provided_session_id|poor_man_session_id|model_name|org_id|duration_ttft_ms|duration_e2e_ms|cached_tokens_reference)$')
FROM read_parquet($path, hive_partitioning := false)
