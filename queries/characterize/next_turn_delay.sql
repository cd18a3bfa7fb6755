-- next_turn_delay: p90 of the time from a request to its next turn
-- $trace_id: the trace
-- columns: continued, delay_p90_s
SELECT count(*) AS continued, quantile_disc(child.arrival_s - above.arrival_s, 0.9) AS delay_p90_s
FROM requests AS child
JOIN requests AS above ON above.trace_id = $trace_id AND above.request = child.parent
WHERE child.trace_id = $trace_id
