-- multi_turn: whether each request is a later turn, in order of arrival
-- $trace_id: the trace
-- columns: multi_turn
SELECT turn > 1 AS multi_turn FROM requests WHERE trace_id = $trace_id ORDER BY request
