-- same_request: the runs of a trace for this request
-- $trace_id: the trace
-- $asked: digest of policy, parameters, capacity and setting
-- columns: run_id
SELECT run_id FROM runs WHERE trace_id = $trace_id AND asked = $asked
