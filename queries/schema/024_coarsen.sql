-- schema: blocks are no longer merged for a replay, and runs for which they were are gone

DELETE FROM run_parts WHERE run_id IN (SELECT run_id FROM runs WHERE setting.coarsen > 1);
DELETE FROM runs WHERE setting.coarsen > 1;
ALTER TABLE runs DROP COLUMN setting.coarsen;
