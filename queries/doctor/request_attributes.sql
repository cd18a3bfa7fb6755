-- request_attributes: how many requests of a trace have attributes, and how many contradict the trace
-- $trace_id: the trace
-- columns: in_table, wrong, digest
SELECT
    count(*) AS in_table,
    count(*) FILTER (request_attributes.request NOT BETWEEN 0 AND traces.requests - 1) AS wrong,
    bit_xor(hash(request_attributes)) AS digest  -- reads every column
FROM request_attributes
JOIN traces ON traces.trace_id = request_attributes.trace_id
WHERE request_attributes.trace_id = $trace_id
