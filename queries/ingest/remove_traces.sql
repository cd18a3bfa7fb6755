-- remove_traces: delete the rows of this trace from traces
-- $trace_id: the trace
DELETE FROM traces WHERE trace_id = $trace_id
