-- schema: the gap of a reuse is the difference between two arrivals, and is not stored as well

ALTER TABLE reuses DROP COLUMN gap_s;
