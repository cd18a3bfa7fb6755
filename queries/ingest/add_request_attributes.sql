-- add_request_attributes: what a trace says of some requests, from the columns of `frame`, whose names are indices
-- $trace_id: the trace
-- $model_names: the names of the models, by index
-- $adapter_names: likewise
-- $worker_names: likewise
-- $retention_names: likewise, the distinct directives as JSON
-- $none: number that stands for none
INSERT INTO request_attributes (
    trace_id, request, model, adapter, salt, worker, ttft_s, queue_s, duration_s, cached_tokens,
    delay_s, waits_for, clock, retention, repeated_tokens, parts
)
SELECT
    $trace_id, request, ($model_names)[model + 1], ($adapter_names)[adapter + 1], nullif(salt, $none),
    ($worker_names)[worker + 1], nullif(ttft_s, $none), nullif(queue_s, $none),
    nullif(duration_s, $none), nullif(cached_tokens, $none), nullif(delay_s, $none),
    nullif(waits_for, $none), nullif(clock, $none), ($retention_names)[retention + 1],
    nullif(repeated_tokens, $none), nullif(parts, $none)
FROM frame
