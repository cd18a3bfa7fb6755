-- export_own_ids: whether every request has a chat id that no other has and that is not -1 ("none")
-- $trace_id: the trace
-- columns: own_ids
SELECT count(*) = count(DISTINCT chat_id) AND count_if(chat_id = -1) = 0 AS own_ids
FROM requests
WHERE trace_id = $trace_id
