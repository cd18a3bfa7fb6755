-- schema: groups of layers of a hybrid model, which a simulated engine kept apart

ALTER TABLE runs ADD COLUMN kv_groups VARCHAR;  -- as KvGroups.text; NULL: no hybrid model
