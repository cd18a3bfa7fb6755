-- schema: reports know what they answer, and for which deployment

ALTER TABLE reports ADD COLUMN question VARCHAR; -- digest of the request; NULL: an older kvscope's
ALTER TABLE reports ADD COLUMN settings VARCHAR; -- '1 x l40s, llama3-8b in bf16, vllm@0.33'
