-- As migrations/sqlite/0011_archives_and_holes.sql.
CREATE TABLE archives (
    number    BIGINT PRIMARY KEY,
    first_seq BIGINT NOT NULL,
    last_seq  BIGINT NOT NULL CHECK (last_seq >= first_seq),
    path      TEXT COLLATE "C",
    sha256    BYTEA CHECK (octet_length(sha256) = 32),
    bytes     BIGINT,
    signed_by TEXT COLLATE "C" NOT NULL,
    made_at   BIGINT NOT NULL,
    made_by   TEXT COLLATE "C" NOT NULL,
    CHECK ((path IS NULL) = (sha256 IS NULL) AND (path IS NULL) = (bytes IS NULL))
);

CREATE FUNCTION ledger_archives_in_order() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.number <> (SELECT COALESCE(MAX(number), 0) + 1 FROM archives)
        OR NEW.first_seq <> (SELECT COALESCE(MAX(last_seq), 0) + 1 FROM archives)
        OR NOT EXISTS (SELECT FROM checkpoints WHERE size = NEW.last_seq)
    THEN
        RAISE EXCEPTION 'an archive begins behind the one before it, and ends with a signed checkpoint';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER archives_in_order BEFORE INSERT ON archives
FOR EACH ROW EXECUTE FUNCTION ledger_archives_in_order();
CREATE TRIGGER archives_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON archives
FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse();

-- Partitions keep the trigger that refuses every DELETE: it is for who names one of them.
CREATE FUNCTION ledger_only_archived() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT FROM gone WHERE NOT EXISTS (SELECT FROM archives a WHERE gone.seq BETWEEN a.first_seq AND a.last_seq)
    ) THEN
        RAISE EXCEPTION 'the ledger is append-only: delete of % before they are archived is refused', TG_TABLE_NAME;
    END IF;
    RETURN NULL;
END $$;
DROP TRIGGER payloads_append_only ON payloads;
CREATE TRIGGER payloads_append_only BEFORE UPDATE OR TRUNCATE ON payloads
FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse();
CREATE TRIGGER payloads_only_archived AFTER DELETE ON payloads
REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION ledger_only_archived();
DROP TRIGGER event_index_append_only ON event_index;
CREATE TRIGGER event_index_append_only BEFORE UPDATE OR TRUNCATE ON event_index
FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse();
CREATE TRIGGER event_index_only_archived AFTER DELETE ON event_index
REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION ledger_only_archived();

ALTER TABLE streams ADD COLUMN last_at BIGINT;
ALTER TABLE streams ADD COLUMN created_at BIGINT;

CREATE TABLE streams_ahead (
    name           TEXT COLLATE "C" NOT NULL,
    first_sequence BIGINT NOT NULL,
    last_sequence  BIGINT NOT NULL,
    PRIMARY KEY (name, first_sequence)
);

CREATE TABLE holes (
    number         BIGINT PRIMARY KEY,
    stream         TEXT COLLATE "C" NOT NULL,
    created_at     BIGINT NOT NULL,
    first_sequence BIGINT NOT NULL,
    last_sequence  BIGINT NOT NULL,
    from_at        BIGINT NOT NULL,
    to_at          BIGINT NOT NULL,
    found_at       BIGINT NOT NULL,
    UNIQUE (stream, created_at, first_sequence)
);
CREATE TRIGGER holes_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON holes
FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse();
