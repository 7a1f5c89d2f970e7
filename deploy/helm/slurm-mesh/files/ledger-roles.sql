-- The roles of a ledger on PostgreSQL. Run it in the ledger's database as the owner of its tables, who may create roles, after
-- `smesh ledger migrate`; again after an upgrade, which harms nothing. Then make users of your own and put them into a role:
--   CREATE ROLE mesh_ledger LOGIN PASSWORD '…' IN ROLE ledger_appender;    -- ledger.db.url
--   CREATE ROLE mesh_reader LOGIN PASSWORD '…' IN ROLE ledger_reader;      -- ledger.db.reader_url, smesh verify, auditors
--   CREATE ROLE mesh_retention LOGIN PASSWORD '…' IN ROLE ledger_retention;   -- ledger.retention.url, smesh ledger retain
DO $$
DECLARE
    name TEXT;
BEGIN
    FOREACH name IN ARRAY ARRAY['ledger_appender', 'ledger_reader', 'ledger_retention'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', name);
        END IF;
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), name);
    END LOOP;
    -- Before version 15 everybody may make tables in the schema public.
    EXECUTE format('REVOKE CREATE ON SCHEMA %I FROM PUBLIC', current_schema());
END $$;

GRANT SELECT ON entries, payloads, event_index, event_nodes, head, streams, streams_ahead, holes, subtrees, checkpoints, checkpoint_keys, archives, replays,
    _sqlx_migrations TO ledger_appender, ledger_reader, ledger_retention;
-- Partitions by their own names, also later ones: `smesh verify` compares each index with its table.
DO $$
DECLARE
    partition REGCLASS;
BEGIN
    FOR partition IN SELECT inhrelid FROM pg_inherits WHERE inhparent = 'payloads'::regclass LOOP
        EXECUTE format('GRANT SELECT ON %s TO ledger_reader', partition);
    END LOOP;
    EXECUTE format('ALTER DEFAULT PRIVILEGES IN SCHEMA %I GRANT SELECT ON TABLES TO ledger_reader', current_schema());
END $$;

-- Adds behind the head and moves it; triggers see to the rest.
GRANT INSERT ON entries, payloads, event_index, event_nodes, streams, streams_ahead, holes, subtrees, checkpoints, checkpoint_keys TO ledger_appender;
GRANT INSERT, UPDATE, DELETE ON replays TO ledger_appender;
GRANT UPDATE (seq, chain) ON head TO ledger_appender;
GRANT UPDATE (last_sequence, last_at, created_at) ON streams TO ledger_appender;
-- Subtrees follow from the entries: wrong ones are made anew.
GRANT DELETE ON streams_ahead, subtrees TO ledger_appender;
GRANT EXECUTE ON FUNCTION ledger_add_partitions() TO ledger_appender;

-- Notes what is archived, then takes that out, and nothing else; triggers see to it.
GRANT INSERT ON archives TO ledger_retention;
GRANT DELETE ON payloads, event_index, event_nodes TO ledger_retention;
