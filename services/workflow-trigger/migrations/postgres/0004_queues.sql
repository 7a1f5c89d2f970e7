-- Runs of a rule with the same key wait for each other: at most queue_limit of them at a time. NULL: it waits for none.
ALTER TABLE intents ADD COLUMN queue_key TEXT;
ALTER TABLE intents ADD COLUMN queue_limit BIGINT;
CREATE INDEX intents_by_queue ON intents (rule_owner, rule_name, queue_key, created_at) WHERE queue_key IS NOT NULL AND ended_at IS NULL;
