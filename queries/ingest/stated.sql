-- stated: what commands on this trace stated of deployment and SLO
-- $trace_id: the trace
-- columns: options
SELECT options FROM stated WHERE trace_id = $trace_id
