-- set_checksum: store the checksum of a trace
-- $trace_id: the trace
-- $checksum: of all that its tables hold
UPDATE traces SET checksum = $checksum WHERE trace_id = $trace_id
