-- schema: blocks counted in groups, for traces whose tries are not in the store but in a dataset's shards

CREATE TABLE block_groups (
    trace_id      INTEGER NOT NULL,
    first_request INTEGER NOT NULL,  -- as in blocks
    last_request  INTEGER NOT NULL,
    reuses        INTEGER NOT NULL,
    blocks        BIGINT NOT NULL    -- a group may have several rows
);

-- cacheable blocks: those that were a full block of some request, here or in shards
CREATE VIEW cacheable_blocks AS
SELECT trace_id, first_request, last_request, reuses, 1::BIGINT AS blocks
FROM blocks
WHERE first_request IS NOT NULL
UNION ALL
SELECT trace_id, first_request, last_request, reuses, blocks FROM block_groups;
