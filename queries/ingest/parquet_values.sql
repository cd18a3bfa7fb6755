-- parquet_values: how many values a Parquet file says that it has, those of lists included
-- $path: the file; a pattern (*, ?, [) would name several
-- columns: count
SELECT coalesce(sum(num_values), 0)::HUGEINT AS count FROM parquet_metadata($path)
