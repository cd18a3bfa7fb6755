-- schema: the files of bad lines

ALTER TABLE bad_lines ADD COLUMN place VARCHAR;  -- path:line, in its own file; NULL: an older kvscope wrote it
