-- When the ledger took an entry in, in microseconds since 1970. No part of the proof; it says what is old enough to be archived, and on
-- PostgreSQL which partition holds a payload. What was there before counts as taken in when it was observed.
DROP TRIGGER payloads_no_update;
DROP TRIGGER IF EXISTS event_index_no_update;
ALTER TABLE payloads ADD COLUMN recorded_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE event_index ADD COLUMN recorded_at INTEGER NOT NULL DEFAULT 0;
UPDATE event_index SET recorded_at = observed_at;
UPDATE payloads SET recorded_at = COALESCE((SELECT recorded_at FROM event_index i WHERE i.seq = payloads.seq), 0);
CREATE TRIGGER payloads_no_update BEFORE UPDATE ON payloads
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: payloads cannot be changed'); END;
