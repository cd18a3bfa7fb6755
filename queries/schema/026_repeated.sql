-- schema: what a request's messages share with the prompt before, for what the chat template costs

ALTER TABLE request_attributes ADD COLUMN repeated_tokens INTEGER;  -- of the parent's prompt

CREATE OR REPLACE VIEW attributed AS
SELECT * FROM requests LEFT JOIN request_attributes USING (trace_id, request);
