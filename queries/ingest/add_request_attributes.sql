-- add_request_attributes: what a trace says of some requests, from the columns of `frame`, whose names are indices
-- $trace_id: the trace
-- $models: the names of the models, by index
-- $adapters: likewise
-- $workers: likewise
-- $directives: likewise, the distinct directives as JSON
-- $none: number that stands for none
INSERT INTO request_attributes (
    trace_id, request, model, adapter, salt, worker, ttft_s, queue_s, duration_s, cached_tokens,
    delay_s, waits_for, clock, retention
)
SELECT
    $trace_id, request, ($models)[model + 1], ($adapters)[adapter + 1], nullif(salt, $none),
    ($workers)[worker + 1], nullif(ttft_s, $none), nullif(queue_s, $none),
    nullif(duration_s, $none), nullif(cached_tokens, $none), nullif(delay_s, $none),
    nullif(waits_for, $none), nullif(clock, $none), ($directives)[retention + 1]
FROM frame
