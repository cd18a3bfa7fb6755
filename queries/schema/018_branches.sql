-- schema: where paths branch off, of every trace, not only of a dataset: it takes a tenth of a column of parents; and hash ids that tenants had before, which most traces lack, in a table of their own

INSERT INTO branches (trace_id, block, parent)
SELECT trace_id, block, parent
FROM blocks
WHERE block = 1 OR parent != block - 1;  -- the first, so that a trace with blocks has a row

CREATE TABLE own_hash_ids (
    trace_id INTEGER NOT NULL,
    block    INTEGER NOT NULL,
    hash_id  BIGINT NOT NULL  -- as the trace has it, of a tenant's first blocks, whose blocks.hash_id tells tenants apart
);

INSERT INTO own_hash_ids
SELECT trace_id, block, own_hash_id FROM blocks WHERE own_hash_id IS NOT NULL;

ALTER TABLE blocks DROP COLUMN parent;
ALTER TABLE blocks DROP COLUMN own_hash_id;
