-- Indexes that cost each event more than they find: events of a category are found by their types, and the ledger knows in memory which
-- clusters and times are in which block of entries (src/adapters/block_ranges.rs).
DROP INDEX event_index_cluster;
DROP INDEX event_index_time;
DROP INDEX event_index_category;
CREATE INDEX event_index_category ON event_index (category, seq) WHERE category = 'audit';
