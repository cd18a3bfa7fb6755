-- lengths: input and output lengths of the requests
-- $trace_id: the trace
-- columns: requests, input_mean, input_at, input_max, output_mean, output_at, output_max, single_turn_mean, multi_turn_mean
SELECT
    count(*) AS requests,
    avg(input_tokens) AS input_mean,
    quantile_disc(input_tokens, [0.5, 0.8, 0.9, 0.99]) AS input_at,
    max(input_tokens) AS input_max,
    avg(output_tokens) AS output_mean,
    quantile_disc(output_tokens, [0.5, 0.8, 0.9, 0.99]) AS output_at,
    max(output_tokens) AS output_max,
    avg(input_tokens::BIGINT + output_tokens) FILTER (WHERE turn = 1) AS single_turn_mean,
    avg(input_tokens::BIGINT + output_tokens) FILTER (WHERE turn > 1) AS multi_turn_mean
FROM requests
WHERE trace_id = $trace_id
