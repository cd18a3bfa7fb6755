-- runs: the runs of a validation, in the order of running
-- $validation_id: the validation
-- columns: policy, leaves, params, repeat, flags, predicted, measured, mismatched_requests, mismatched_tokens, failed_requests, ended, predicted_hit_tokens, measured_hit_tokens, predicted_ttft_s, measured_ttft_s, request_numbers
SELECT
    policy, leaves, params, repeat, flags, predicted, measured, mismatched_requests,
    mismatched_tokens, failed_requests, ended, predicted_hit_tokens, measured_hit_tokens,
    predicted_ttft_s, measured_ttft_s, request_numbers
FROM validation_runs
WHERE validation_id = $validation_id
ORDER BY place
