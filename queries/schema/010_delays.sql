-- schema: the delays between turns that a trace states

ALTER TABLE requests ADD COLUMN delay_s DOUBLE;  -- after the turn before had ended; NULL: not stated
