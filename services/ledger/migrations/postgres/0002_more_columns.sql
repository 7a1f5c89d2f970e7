-- As migrations/sqlite/0003_more_columns.sql.
ALTER TABLE event_index DISABLE TRIGGER event_index_append_only;
TRUNCATE event_index;
ALTER TABLE event_index ENABLE TRIGGER event_index_append_only;
ALTER TABLE event_index ADD COLUMN subject TEXT COLLATE "C";
ALTER TABLE event_index ADD COLUMN email TEXT COLLATE "C";
ALTER TABLE event_index ADD COLUMN name TEXT COLLATE "C";
ALTER TABLE event_index ADD COLUMN wait_seconds BIGINT;
ALTER TABLE event_index ADD COLUMN cost_micros BIGINT;
ALTER TABLE event_index ADD COLUMN currency TEXT COLLATE "C";
CREATE INDEX event_index_run ON event_index (run, seq) WHERE run IS NOT NULL;
CREATE INDEX event_index_subject ON event_index (subject, seq) WHERE subject IS NOT NULL;
CREATE INDEX event_index_email ON event_index (email, seq) WHERE email IS NOT NULL;
CREATE INDEX event_index_account ON event_index (account, seq) WHERE account IS NOT NULL;
CREATE INDEX event_index_partition ON event_index (partition, seq) WHERE partition IS NOT NULL;
CREATE INDEX event_index_node ON event_index (node, seq) WHERE node IS NOT NULL;
CREATE INDEX event_index_name ON event_index (name, seq) WHERE name IS NOT NULL;
CREATE INDEX event_index_time ON event_index (occurred_at, seq);
