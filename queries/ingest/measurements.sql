-- measurements: how requests were served, a row per request, in order of arrival
-- $trace_id: the trace
-- columns: request, worker, ttft_s, queue_s, duration_s, cached_tokens, delay_s, waits_for
SELECT
    request,
    if(worker IS NULL, -1, dense_rank() OVER (ORDER BY worker NULLS LAST) - 1)::INTEGER AS worker,
    coalesce(ttft_s, 'nan') AS ttft_s,
    coalesce(queue_s, 'nan') AS queue_s,
    coalesce(duration_s, 'nan') AS duration_s,
    coalesce(cached_tokens, -1)::INTEGER AS cached_tokens,
    coalesce(delay_s, 'nan') AS delay_s,
    coalesce(waits_for, -1)::INTEGER AS waits_for
FROM attributed
WHERE trace_id = $trace_id
ORDER BY request
