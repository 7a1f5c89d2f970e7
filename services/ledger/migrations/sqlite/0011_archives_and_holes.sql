-- Ranges of entries whose payloads were taken out: written to a file before, or (path, sha256 and bytes are NULL) erased. The ranges follow
-- each other from the first entry on, and each ends with a signed checkpoint.
CREATE TABLE archives (
    number    INTEGER PRIMARY KEY,
    first_seq INTEGER NOT NULL,
    last_seq  INTEGER NOT NULL CHECK (last_seq >= first_seq),
    path      TEXT,
    sha256    BLOB CHECK (length(sha256) = 32),
    bytes     INTEGER,
    signed_by TEXT NOT NULL,
    made_at   INTEGER NOT NULL,
    made_by   TEXT NOT NULL,
    CHECK ((path IS NULL) = (sha256 IS NULL) AND (path IS NULL) = (bytes IS NULL))
) STRICT;

CREATE TRIGGER archives_in_order BEFORE INSERT ON archives
WHEN NEW.number <> (SELECT COALESCE(MAX(number), 0) + 1 FROM archives)
    OR NEW.first_seq <> (SELECT COALESCE(MAX(last_seq), 0) + 1 FROM archives)
    OR NOT EXISTS (SELECT 1 FROM checkpoints WHERE size = NEW.last_seq)
BEGIN SELECT RAISE(ABORT, 'an archive begins behind the one before it, and ends with a signed checkpoint'); END;
CREATE TRIGGER archives_no_update BEFORE UPDATE ON archives
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: archives cannot be changed'); END;
CREATE TRIGGER archives_no_delete BEFORE DELETE ON archives
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: archives cannot be deleted'); END;

-- A payload goes once its range is in `archives`, and its columns for queries with it: never one without that trace.
DROP TRIGGER payloads_no_delete;
CREATE TRIGGER payloads_no_delete BEFORE DELETE ON payloads
WHEN NOT EXISTS (SELECT 1 FROM archives a WHERE OLD.seq BETWEEN a.first_seq AND a.last_seq)
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: payloads cannot be deleted before they are archived'); END;
-- Made again when the ledger opens.
DROP TRIGGER IF EXISTS event_index_no_delete;

-- `last_sequence` is now up to where every message was taken in or is in `holes`. `last_at`: when the stream stored the last of them;
-- `created_at`: when the stream was made, as one that is made anew counts from 1 again. Microseconds since 1970.
ALTER TABLE streams ADD COLUMN last_at INTEGER;
ALTER TABLE streams ADD COLUMN created_at INTEGER;

-- Messages beyond `last_sequence` that were taken in already. Empty but for moments.
CREATE TABLE streams_ahead (
    name           TEXT NOT NULL,
    first_sequence INTEGER NOT NULL,
    last_sequence  INTEGER NOT NULL,
    PRIMARY KEY (name, first_sequence)
) STRICT, WITHOUT ROWID;

-- Messages that were gone from a stream before the ledger had them, and between which times the stream had stored them.
CREATE TABLE holes (
    number         INTEGER PRIMARY KEY,
    stream         TEXT NOT NULL,
    created_at     INTEGER NOT NULL,
    first_sequence INTEGER NOT NULL,
    last_sequence  INTEGER NOT NULL,
    from_at        INTEGER NOT NULL,
    to_at          INTEGER NOT NULL,
    found_at       INTEGER NOT NULL,
    UNIQUE (stream, created_at, first_sequence)
) STRICT;
CREATE TRIGGER holes_no_update BEFORE UPDATE ON holes
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: holes cannot be changed'); END;
CREATE TRIGGER holes_no_delete BEFORE DELETE ON holes
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: holes cannot be deleted'); END;
