-- checksum: the checksum that was stored with a trace
-- $trace_id: the trace
-- columns: checksum
SELECT checksum FROM traces WHERE trace_id = $trace_id
