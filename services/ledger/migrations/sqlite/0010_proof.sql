-- Hashes of complete subtrees of the Merkle tree over entries.leaf: level 8 (256 leaves), 16, 24, … They follow from the leaves and are no
-- part of the proof: what is missing is made anew, and the table may be emptied.
CREATE TABLE subtrees (
    level INTEGER NOT NULL CHECK (level > 0),
    idx   INTEGER NOT NULL CHECK (idx >= 0),
    hash  BLOB NOT NULL CHECK (length(hash) = 32),
    PRIMARY KEY (level, idx)
) STRICT, WITHOUT ROWID;

-- Keys that checkpoints are signed with, in their order; the last one signs now. Private keys are in files.
CREATE TABLE checkpoint_keys (
    number    INTEGER PRIMARY KEY,
    vkey      TEXT NOT NULL UNIQUE,
    from_size INTEGER NOT NULL,
    made_at   INTEGER NOT NULL,
    made_by   TEXT NOT NULL
) STRICT;

-- Signed checkpoints, never pruned. A hand-over to another key may sign a size a second time.
CREATE TABLE checkpoints (
    number  INTEGER PRIMARY KEY,
    size    INTEGER NOT NULL,
    root    BLOB NOT NULL CHECK (length(root) = 32),
    note    TEXT NOT NULL UNIQUE,
    made_at INTEGER NOT NULL
) STRICT;
CREATE INDEX checkpoints_size ON checkpoints (size, number);

CREATE TRIGGER checkpoints_no_update BEFORE UPDATE ON checkpoints
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: checkpoints cannot be changed'); END;
CREATE TRIGGER checkpoints_no_delete BEFORE DELETE ON checkpoints
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: checkpoints cannot be deleted'); END;
CREATE TRIGGER checkpoint_keys_no_update BEFORE UPDATE ON checkpoint_keys
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: its keys cannot be changed'); END;
CREATE TRIGGER checkpoint_keys_no_delete BEFORE DELETE ON checkpoint_keys
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: its keys cannot be deleted'); END;
CREATE TRIGGER subtrees_no_update BEFORE UPDATE ON subtrees
BEGIN SELECT RAISE(ABORT, 'subtrees cannot be changed: delete them all, and they are made anew'); END;
