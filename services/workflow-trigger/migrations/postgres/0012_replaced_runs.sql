-- The run that replaces one whose job is still to be cancelled. Empty: none.
ALTER TABLE intents ADD COLUMN replaced_by TEXT NOT NULL DEFAULT '';
