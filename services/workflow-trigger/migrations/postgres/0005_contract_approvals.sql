-- Runs that wait for a person. NULL in approve_within: it needs no approval.
ALTER TABLE intents ADD COLUMN approve_within BIGINT;
-- When the present request for approval ends, and when the approvers were asked.
ALTER TABLE intents ADD COLUMN approve_until BIGINT;
ALTER TABLE intents ADD COLUMN asked_at BIGINT;
ALTER TABLE intents ADD COLUMN approved_by TEXT NOT NULL DEFAULT '';
-- Names of whoever caused it, one per line.
ALTER TABLE intents ADD COLUMN requesters TEXT NOT NULL DEFAULT '';
