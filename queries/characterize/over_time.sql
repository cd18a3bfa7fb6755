-- over_time: traffic and ideal hits by window, windows without requests included
-- $trace_id: the trace
-- $window_s: length of a window
-- $last_window: number of the last window, from 0; it also takes what arrives after its end
-- columns: window_index, requests, input_tokens, output_tokens, full_blocks, ideal_blocks
WITH counted AS (
    SELECT
        least(floor(arrival_s / $window_s), $last_window)::BIGINT AS window_index,
        count(*) AS requests,
        sum(input_tokens)::BIGINT AS input_tokens,
        sum(output_tokens)::BIGINT AS output_tokens,
        sum(full_blocks)::BIGINT AS full_blocks,
        sum(ideal_blocks)::BIGINT AS ideal_blocks
    FROM requests
    WHERE trace_id = $trace_id
    GROUP BY 1
)
SELECT
    windows.window_index,
    coalesce(requests, 0) AS requests,
    coalesce(input_tokens, 0) AS input_tokens,
    coalesce(output_tokens, 0) AS output_tokens,
    coalesce(full_blocks, 0) AS full_blocks,
    coalesce(ideal_blocks, 0) AS ideal_blocks
FROM range($last_window::BIGINT + 1) AS windows(window_index)
LEFT JOIN counted ON counted.window_index = windows.window_index
ORDER BY windows.window_index
