-- schema: reports keep their JSON document

ALTER TABLE reports ADD COLUMN document VARCHAR; -- as `--json` prints it; NULL: an older kvscope's
