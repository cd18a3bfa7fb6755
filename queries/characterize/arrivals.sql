-- arrivals: mean and standard deviation of the time between successive arrivals
-- $trace_id: the trace
-- columns: intervals, mean_s, deviation_s
SELECT count(waited_s) AS intervals, avg(waited_s) AS mean_s, stddev_pop(waited_s) AS deviation_s
FROM (
    SELECT arrival_s - lag(arrival_s) OVER (ORDER BY request) AS waited_s
    FROM requests
    WHERE trace_id = $trace_id
)
