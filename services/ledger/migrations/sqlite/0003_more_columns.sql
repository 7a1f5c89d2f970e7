-- More columns for queries. All of them are read out of the payloads: the table is emptied, and filled again when the ledger opens, which
-- sets its triggers, too.
DROP TRIGGER IF EXISTS event_index_no_delete;
DELETE FROM event_index;
ALTER TABLE event_index ADD COLUMN subject TEXT;
ALTER TABLE event_index ADD COLUMN email TEXT;
ALTER TABLE event_index ADD COLUMN name TEXT;
ALTER TABLE event_index ADD COLUMN wait_seconds INTEGER;
ALTER TABLE event_index ADD COLUMN cost_micros INTEGER;
ALTER TABLE event_index ADD COLUMN currency TEXT;
CREATE INDEX event_index_run ON event_index (run, seq) WHERE run IS NOT NULL;
CREATE INDEX event_index_subject ON event_index (subject, seq) WHERE subject IS NOT NULL;
CREATE INDEX event_index_email ON event_index (email, seq) WHERE email IS NOT NULL;
CREATE INDEX event_index_account ON event_index (account, seq) WHERE account IS NOT NULL;
CREATE INDEX event_index_partition ON event_index (partition, seq) WHERE partition IS NOT NULL;
CREATE INDEX event_index_node ON event_index (node, seq) WHERE node IS NOT NULL;
CREATE INDEX event_index_name ON event_index (name, seq) WHERE name IS NOT NULL;
CREATE INDEX event_index_time ON event_index (occurred_at, seq);
