-- The proof: what docs/events.md calls the chain. Never partitioned, never pruned, no personal data.
CREATE TABLE entries (
    seq   INTEGER PRIMARY KEY,
    id    TEXT NOT NULL UNIQUE,
    leaf  BLOB NOT NULL CHECK (length(leaf) = 32),
    chain BLOB NOT NULL CHECK (length(chain) = 32)
) STRICT;

-- What the leaves were computed from, exactly as received. Apart from `entries` so that bodies can one day be archived without
-- touching the proof.
CREATE TABLE payloads (
    seq     INTEGER PRIMARY KEY REFERENCES entries (seq),
    cluster TEXT NOT NULL,
    subject TEXT NOT NULL,
    body    BLOB NOT NULL
) STRICT;

-- The end of the chain. One row: it is the lock under which sequences are taken, and it shows a tail that was cut off.
CREATE TABLE head (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    seq      INTEGER NOT NULL,
    chain    BLOB NOT NULL CHECK (length(chain) = 32)
) STRICT;
INSERT INTO head (only_row, seq, chain) VALUES (1, 0, zeroblob(32));

-- How far each JetStream stream has been taken in.
CREATE TABLE streams (
    name          TEXT PRIMARY KEY,
    last_sequence INTEGER NOT NULL
) STRICT;

-- For queries only: every column is read out of the payload and can be filled again from it, so it is no part of the proof and may be
-- deleted. Times are microseconds since 1970.
CREATE TABLE event_index (
    seq          INTEGER PRIMARY KEY REFERENCES payloads (seq),
    cluster      TEXT NOT NULL,
    category     TEXT NOT NULL,
    type         TEXT NOT NULL,
    job_id       INTEGER,
    array_job_id INTEGER,
    task_id      INTEGER,
    het_job_id   INTEGER,
    het_offset   INTEGER,
    run          TEXT,
    user_name    TEXT,
    account      TEXT,
    partition    TEXT,
    node         TEXT,
    occurred_at  INTEGER NOT NULL,
    observed_at  INTEGER NOT NULL
) STRICT;
CREATE INDEX event_index_category ON event_index (category, seq);
CREATE INDEX event_index_type ON event_index (type, seq);
CREATE INDEX event_index_user ON event_index (user_name, seq) WHERE user_name IS NOT NULL;
CREATE INDEX event_index_job ON event_index (job_id, seq) WHERE job_id IS NOT NULL;
CREATE INDEX event_index_array ON event_index (array_job_id, task_id, seq) WHERE array_job_id IS NOT NULL;
CREATE INDEX event_index_het ON event_index (het_job_id, seq) WHERE het_job_id IS NOT NULL;

-- Nothing is ever changed or taken away.
CREATE TRIGGER entries_no_update BEFORE UPDATE ON entries
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: entries cannot be changed'); END;
CREATE TRIGGER entries_no_delete BEFORE DELETE ON entries
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: entries cannot be deleted'); END;
CREATE TRIGGER payloads_no_update BEFORE UPDATE ON payloads
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: payloads cannot be changed'); END;
CREATE TRIGGER payloads_no_delete BEFORE DELETE ON payloads
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: payloads cannot be deleted'); END;
CREATE TRIGGER head_no_delete BEFORE DELETE ON head
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: its head cannot be deleted'); END;
CREATE TRIGGER head_only_forward BEFORE UPDATE ON head WHEN NEW.seq <= OLD.seq
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: its head only moves forward'); END;

-- INSERT OR REPLACE deletes the row it replaces without firing DELETE triggers (unless the connection has recursive_triggers on), so
-- it is refused here.
CREATE TRIGGER entries_no_replace BEFORE INSERT ON entries
WHEN EXISTS (SELECT 1 FROM entries WHERE seq = NEW.seq) OR EXISTS (SELECT 1 FROM entries WHERE id = NEW.id)
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: entries cannot be replaced'); END;
CREATE TRIGGER payloads_no_replace BEFORE INSERT ON payloads
WHEN EXISTS (SELECT 1 FROM payloads WHERE seq = NEW.seq)
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: payloads cannot be replaced'); END;
