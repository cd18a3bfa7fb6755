-- traces_of_size: number of stored traces from a file of this size
-- $source_bytes: size on disk
-- columns: traces
SELECT count(*) AS traces FROM traces WHERE source_bytes = $source_bytes
