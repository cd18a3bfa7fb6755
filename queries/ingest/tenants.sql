-- tenants: the model, adapter and salt of each request as numbers from 0, -1 for none, by arrival
-- $trace_id: the trace
-- columns: model, adapter, salt
SELECT
    if(model IS NULL, -1, dense_rank() OVER (ORDER BY model NULLS LAST) - 1)::INTEGER AS model,
    if(adapter IS NULL, -1, dense_rank() OVER (ORDER BY adapter NULLS LAST) - 1)::INTEGER AS adapter,
    coalesce(salt, -1)::INTEGER AS salt
FROM attributed
WHERE trace_id = $trace_id
ORDER BY request
