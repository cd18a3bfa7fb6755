-- schema: a checksum of what a trace's tables hold, NULL where an older kvscope stored it

ALTER TABLE traces ADD COLUMN checksum VARCHAR;
