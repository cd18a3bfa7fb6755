-- schema: the blocks of every trace are counted in groups, not only those of a dataset: blocks that follow each other on a path mostly share their first and last request

INSERT INTO block_groups
SELECT trace_id, first_request, last_request, reuses, count(*)
FROM blocks
WHERE first_request IS NOT NULL
GROUP BY trace_id, first_request, last_request, reuses;

DROP VIEW cacheable_blocks;
ALTER TABLE blocks DROP COLUMN first_request;  -- block_groups has both
ALTER TABLE blocks DROP COLUMN last_request;
