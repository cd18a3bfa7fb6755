-- add_runs: the runs of a validation
-- $validation_id: the validation
-- $rows: structs of policy, leaves, params, repeat, flags, predicted, measured, mismatched_requests, mismatched_tokens, failed_requests, ended, predicted_hit_tokens, measured_hit_tokens, predicted_ttft_s, measured_ttft_s, request_numbers, in order
INSERT INTO validation_runs (
    validation_id, place, policy, leaves, params, repeat, flags, predicted, measured,
    mismatched_requests, mismatched_tokens, failed_requests, ended, predicted_hit_tokens,
    measured_hit_tokens, predicted_ttft_s, measured_ttft_s, request_numbers
)
SELECT
    $validation_id, place - 1, row.policy, row.leaves, row.params, row.repeat, row.flags,
    row.predicted, row.measured, row.mismatched_requests, row.mismatched_tokens,
    row.failed_requests, row.ended, row.predicted_hit_tokens, row.measured_hit_tokens,
    row.predicted_ttft_s, row.measured_ttft_s, row.request_numbers
FROM (SELECT unnest($rows) AS row, generate_subscripts($rows, 1) AS place)
