-- schema: where paths branch off, for traces whose tries are not in the store but in a dataset's shards

-- blocks are numbered along paths: the parent of all others is the block numbered before them
CREATE TABLE branches (
    trace_id INTEGER NOT NULL,
    block    INTEGER NOT NULL,
    parent   INTEGER NOT NULL  -- 0: the root
);
