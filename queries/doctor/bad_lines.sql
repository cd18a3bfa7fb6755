-- bad_lines: how many bad lines of a trace are stored, and how many the trace does not count
-- $trace_id: the trace
-- columns: in_table, wrong, digest
SELECT
    count(*) AS in_table,
    count(*) FILTER (each.line < 1) AS wrong,
    bit_xor(hash(each)) AS digest  -- reads every column
FROM bad_lines AS each
WHERE each.trace_id = $trace_id
