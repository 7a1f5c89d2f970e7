-- The same tables as migrations/sqlite, where the comments on each are, for PostgreSQL 14 or newer. Different here: `payloads` is
-- partitioned by month, and roles without the rights of the owner work on the tables (`smesh ledger roles`).
-- Text is compared byte by byte: nothing depends on the locale of the server.
CREATE TABLE entries (
    seq   BIGINT PRIMARY KEY,
    id    TEXT COLLATE "C" NOT NULL UNIQUE,
    leaf  BYTEA NOT NULL CHECK (octet_length(leaf) = 32),
    chain BYTEA NOT NULL CHECK (octet_length(chain) = 32)
);

-- By month of recorded_at, in microseconds since 1970. What fits no month's partition goes to payloads_other: an append never fails
-- because a partition is missing.
CREATE TABLE payloads (
    seq         BIGINT NOT NULL,
    recorded_at BIGINT NOT NULL,
    cluster     TEXT COLLATE "C" NOT NULL,
    subject     TEXT COLLATE "C" NOT NULL,
    body        BYTEA NOT NULL,
    PRIMARY KEY (seq, recorded_at)
) PARTITION BY RANGE (recorded_at);
CREATE TABLE payloads_other PARTITION OF payloads DEFAULT;

CREATE TABLE head (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    seq      BIGINT NOT NULL,
    chain    BYTEA NOT NULL CHECK (octet_length(chain) = 32)
);
INSERT INTO head (only_row, seq, chain) VALUES (1, 0, decode(repeat('00', 32), 'hex'));

CREATE TABLE streams (
    name          TEXT COLLATE "C" PRIMARY KEY,
    last_sequence BIGINT NOT NULL
);

CREATE TABLE event_index (
    seq          BIGINT PRIMARY KEY,
    cluster      TEXT COLLATE "C" NOT NULL,
    category     TEXT COLLATE "C" NOT NULL,
    type         TEXT COLLATE "C" NOT NULL,
    job_id       BIGINT,
    array_job_id BIGINT,
    task_id      BIGINT,
    het_job_id   BIGINT,
    het_offset   BIGINT,
    run          TEXT COLLATE "C",
    user_name    TEXT COLLATE "C",
    account      TEXT COLLATE "C",
    partition    TEXT COLLATE "C",
    node         TEXT COLLATE "C",
    occurred_at  BIGINT NOT NULL,
    observed_at  BIGINT NOT NULL,
    -- As in payloads: joined on both, only one partition is looked into.
    recorded_at  BIGINT NOT NULL
);
CREATE INDEX event_index_category ON event_index (category, seq);
CREATE INDEX event_index_type ON event_index (type, seq);
CREATE INDEX event_index_user ON event_index (user_name, seq) WHERE user_name IS NOT NULL;
CREATE INDEX event_index_job ON event_index (job_id, seq) WHERE job_id IS NOT NULL;
CREATE INDEX event_index_array ON event_index (array_job_id, task_id, seq) WHERE array_job_id IS NOT NULL;
CREATE INDEX event_index_het ON event_index (het_job_id, seq) WHERE het_job_id IS NOT NULL;

-- Nothing is ever changed or taken away.
CREATE FUNCTION ledger_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the ledger is append-only: % of % is refused', lower(TG_OP), TG_TABLE_NAME;
END $$;
CREATE TRIGGER entries_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON entries
FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse();
CREATE TRIGGER payloads_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON payloads
FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse();
CREATE TRIGGER payloads_other_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON payloads_other
FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse();
CREATE TRIGGER event_index_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON event_index
FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse();
CREATE TRIGGER head_append_only BEFORE INSERT OR DELETE OR TRUNCATE ON head
FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse();
CREATE TRIGGER streams_append_only BEFORE DELETE OR TRUNCATE ON streams
FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse();

CREATE FUNCTION ledger_head_only_forward() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.only_row <> OLD.only_row OR NEW.seq <= OLD.seq THEN
        RAISE EXCEPTION 'the ledger is append-only: its head only moves forward';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER head_only_forward BEFORE UPDATE ON head
FOR EACH ROW EXECUTE FUNCTION ledger_head_only_forward();

-- An append moves the head after its rows: whoever may insert, adds behind the head and nowhere else.
CREATE FUNCTION ledger_only_behind_head() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM added WHERE seq <= (SELECT head.seq FROM head)) THEN
        RAISE EXCEPTION 'the ledger is append-only: a sequence of % up to its head is taken', TG_TABLE_NAME;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER entries_only_behind_head AFTER INSERT ON entries
REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION ledger_only_behind_head();
CREATE TRIGGER payloads_only_behind_head AFTER INSERT ON payloads
REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION ledger_only_behind_head();

-- Makes the partitions of this month and the two after it. With the rights of the owner, so that the appender need not have them; it
-- takes no argument that could be misused.
CREATE FUNCTION ledger_add_partitions() RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    month     TIMESTAMPTZ;
    begins    BIGINT;
    ends      BIGINT;
    partition TEXT;
BEGIN
    -- Two replicas may start at once.
    PERFORM pg_advisory_xact_lock(hashtext('ledger_add_partitions'));
    FOR ahead IN 0..2 LOOP
        month := (date_trunc('month', now() AT TIME ZONE 'UTC') + make_interval(months => ahead)) AT TIME ZONE 'UTC';
        begins := extract(epoch FROM month)::BIGINT * 1000000;
        ends := extract(epoch FROM ((month AT TIME ZONE 'UTC') + INTERVAL '1 month') AT TIME ZONE 'UTC')::BIGINT * 1000000;
        partition := 'payloads_' || to_char(month AT TIME ZONE 'UTC', 'YYYY_MM');
        -- What is in payloads_other already stays there: a partition of its month could not be attached beside it.
        CONTINUE WHEN to_regclass(partition) IS NOT NULL
            OR EXISTS (SELECT FROM payloads_other WHERE recorded_at >= begins AND recorded_at < ends);
        EXECUTE format('CREATE TABLE %I (LIKE payloads INCLUDING ALL)', partition);
        EXECUTE format('CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON %I
            FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse()', partition);
        -- Attaching, unlike CREATE TABLE … PARTITION OF, does not wait for those who read.
        EXECUTE format('ALTER TABLE payloads ATTACH PARTITION %I FOR VALUES FROM (%s) TO (%s)', partition, begins, ends);
    END LOOP;
END $$;
REVOKE EXECUTE ON FUNCTION ledger_add_partitions() FROM PUBLIC;

-- A function with its owner's rights must not find a table of the caller's under the name of one of these.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION ledger_add_partitions() SET search_path = %I, pg_temp', current_schema());
END $$;
