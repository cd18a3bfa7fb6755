-- later_turns: requests that are the next turn of an earlier one
-- $trace_id: the trace
-- $first: the first request
-- $end: the first one not any more
-- columns: request, parent
SELECT request, parent
FROM requests
WHERE trace_id = $trace_id AND request >= $first AND request < $end AND parent IS NOT NULL
