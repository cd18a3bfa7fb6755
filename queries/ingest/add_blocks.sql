-- add_blocks: the trie's blocks from the columns of `frame`
-- $trace_id: the trace
-- $no_request: request number that stands for none
INSERT INTO blocks (
    trace_id, block, parent, depth, hash_id, first_request, last_request, reuses
)
SELECT
    $trace_id, block, parent, depth, hash_id, nullif(first_request, $no_request),
    nullif(last_request, $no_request), reuses
FROM frame
