-- parquet_values: how many values a Parquet file says that it has, those of lists included, and its columns
-- $path: the file; a pattern (*, ?, [) would name several
-- columns: count, names
SELECT
    coalesce(sum(num_values), 0)::HUGEINT AS count,
    list(DISTINCT split_part(path_in_schema, ', ', 1)) AS names
FROM parquet_metadata($path)
