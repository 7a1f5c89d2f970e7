-- As migrations/sqlite/0021_no_index_of_times.sql.
DROP INDEX event_index_cluster;
DROP INDEX event_index_time;
DROP INDEX event_index_category;
CREATE INDEX event_index_category ON event_index (category, seq) WHERE category = 'audit';
