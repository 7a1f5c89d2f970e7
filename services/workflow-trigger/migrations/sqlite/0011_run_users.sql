-- The user as whom a run acts, of a rule that acts as the owner of the event's job. Empty: the rule's owner.
ALTER TABLE intents ADD COLUMN run_user TEXT NOT NULL DEFAULT '';
