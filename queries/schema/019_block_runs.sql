-- schema: blocks in runs: along a path, numbers and hash ids mostly go up by one, so that a tenth of the rows hold the published traces

ALTER TABLE blocks ADD COLUMN blocks INTEGER DEFAULT 1;  -- from `block` on; block, depth and hash_id of each are one more than those before

CREATE VIEW each_block AS
SELECT
    trace_id,
    (block + step)::INTEGER AS block,
    (depth + step)::INTEGER AS depth,
    hash_id + step AS hash_id,
    reuses
FROM (SELECT *, unnest(range(blocks)) AS step FROM blocks);
