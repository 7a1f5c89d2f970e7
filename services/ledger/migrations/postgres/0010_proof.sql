-- Hashes of complete subtrees of the Merkle tree over entries.leaf: level 8 (256 leaves), 16, 24, … They follow from the leaves and are no
-- part of the proof: what is missing is made anew, and the table may be emptied.
CREATE TABLE subtrees (
    level BIGINT NOT NULL CHECK (level > 0),
    idx   BIGINT NOT NULL CHECK (idx >= 0),
    hash  BYTEA NOT NULL CHECK (octet_length(hash) = 32),
    PRIMARY KEY (level, idx)
);

-- Keys that checkpoints are signed with, in their order; the last one signs now. Private keys are in files.
CREATE TABLE checkpoint_keys (
    number    BIGINT PRIMARY KEY,
    vkey      TEXT COLLATE "C" NOT NULL UNIQUE,
    from_size BIGINT NOT NULL,
    made_at   BIGINT NOT NULL,
    made_by   TEXT COLLATE "C" NOT NULL
);

-- Signed checkpoints, never pruned. A hand-over to another key may sign a size a second time.
CREATE TABLE checkpoints (
    number  BIGINT PRIMARY KEY,
    size    BIGINT NOT NULL,
    root    BYTEA NOT NULL CHECK (octet_length(root) = 32),
    note    TEXT COLLATE "C" NOT NULL UNIQUE,
    made_at BIGINT NOT NULL
);
CREATE INDEX checkpoints_size ON checkpoints (size, number);

CREATE TRIGGER checkpoints_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON checkpoints
FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse();
CREATE TRIGGER checkpoint_keys_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON checkpoint_keys
FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse();
CREATE TRIGGER subtrees_no_update BEFORE UPDATE ON subtrees
FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse();
