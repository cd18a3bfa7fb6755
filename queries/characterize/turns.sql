-- turns: number of conversations by their number of requests
-- $trace_id: the trace
-- columns: turns, conversations
SELECT turns, count(*) AS conversations
FROM (
    SELECT count(*) AS turns FROM requests WHERE trace_id = $trace_id GROUP BY conversation
)
GROUP BY turns
ORDER BY turns
