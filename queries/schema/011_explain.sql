-- schema: what a trace says of blocks that several tenants have, and which requests were measured

-- as the trace has it, of a tenant's first blocks, whose hash_id tells tenants apart; else NULL
ALTER TABLE blocks ADD COLUMN IF NOT EXISTS own_hash_id BIGINT;

-- the numbers of the counted requests in the trace; NULL: stored before they were kept
ALTER TABLE validation_runs ADD COLUMN IF NOT EXISTS request_numbers INTEGER[];
