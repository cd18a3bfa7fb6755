-- set_stated: keep what commands on this trace stated of deployment and SLO
-- $trace_id: the trace
-- $options: as JSON, by the name of the option
INSERT OR REPLACE INTO stated VALUES ($trace_id, $options)
