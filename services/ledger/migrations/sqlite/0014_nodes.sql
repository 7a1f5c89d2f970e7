-- For queries by node: the nodes that an entry is about, of a job those that it ran on, in blocks (src/domain/nodes.rs): `n5`, `n[16-31]`.
-- Read out of the payloads like event_index, which is emptied so that both are filled again when the ledger opens; that sets the triggers.
DROP TRIGGER IF EXISTS event_index_no_delete;
DELETE FROM event_index;
CREATE TABLE event_nodes (
    seq   INTEGER NOT NULL,
    block TEXT NOT NULL,
    PRIMARY KEY (seq, block)
) STRICT, WITHOUT ROWID;
CREATE INDEX event_nodes_block ON event_nodes (block, seq);
