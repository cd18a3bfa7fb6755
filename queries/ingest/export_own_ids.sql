-- export_own_ids: whether chat ids identify all requests: each has one, all differ, none is -1
-- $trace_id: the trace
-- columns: own_ids
SELECT count(*) = count(DISTINCT chat_id) AND count_if(chat_id = -1) = 0 AS own_ids
FROM requests
WHERE trace_id = $trace_id
