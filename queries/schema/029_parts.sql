-- schema: what the parts of prompts are (system prompt, tools, messages), and where each ends

ALTER TABLE request_attributes ADD COLUMN parts INTEGER;  -- the last part of the prompt

CREATE TABLE parts (  -- a tree, as blocks are: prompts that begin with the same parts share them
    trace_id INTEGER NOT NULL,
    part     INTEGER NOT NULL,  -- from 1 (0: none)
    above    INTEGER NOT NULL,  -- the part before
    kind     VARCHAR NOT NULL,  -- template | system | tool 3 | user | assistant | tool result
    tokens   INTEGER NOT NULL   -- of the prompt, to the part's end
);

CREATE OR REPLACE VIEW attributed AS
SELECT * FROM requests LEFT JOIN request_attributes USING (trace_id, request);
