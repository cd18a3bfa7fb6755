-- parquet_rows: the rows of a Parquet file, in file order, with those canonical columns that it has
-- $path: the file; a pattern (*, ?, [) would name several
-- columns: input_tokens, output_tokens, arrival_s, hash_ids, chat_id, parent_chat_id, session_id, delay_s, user_id, type, turn, block_size, scope, model, adapter, cache_salt, worker, ttft_s, queue_s, duration_s, cached_tokens, clock
SELECT
    COLUMNS('^(input_tokens|output_tokens|arrival_s|hash_ids|chat_id|parent_chat_id|session_id|delay_s|user_id|type|turn|block_size|scope|model|adapter|cache_salt|worker|ttft_s|queue_s|duration_s|cached_tokens|clock)$')
FROM read_parquet($path, hive_partitioning := false)
