-- The approvers who were asked, one per line. asked_at is not used any more.
ALTER TABLE intents ADD COLUMN asked TEXT NOT NULL DEFAULT '';
