-- As migrations/sqlite/0014_nodes.sql.
ALTER TABLE event_index DISABLE TRIGGER event_index_append_only;
TRUNCATE event_index;
ALTER TABLE event_index ENABLE TRIGGER event_index_append_only;
CREATE TABLE event_nodes (
    seq   BIGINT NOT NULL,
    block TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (seq, block)
);
CREATE INDEX event_nodes_block ON event_nodes (block, seq);
CREATE TRIGGER event_nodes_append_only BEFORE UPDATE OR TRUNCATE ON event_nodes
FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse();
CREATE TRIGGER event_nodes_only_archived AFTER DELETE ON event_nodes
REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION ledger_only_archived();
