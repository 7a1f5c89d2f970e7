-- Where a run is in its chain: the run whose job or event led to it (empty for the first), and the job of its event.
ALTER TABLE intents ADD COLUMN parent TEXT NOT NULL DEFAULT '';
ALTER TABLE intents ADD COLUMN event_job BIGINT;
CREATE INDEX intents_by_event_job ON intents (event_job) WHERE event_job IS NOT NULL;
