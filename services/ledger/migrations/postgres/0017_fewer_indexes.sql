-- As migrations/sqlite/0017_fewer_indexes.sql.
DROP INDEX event_index_run;
DROP INDEX event_index_category;
CREATE INDEX event_index_category ON event_index (category, seq) WHERE category <> 'job';
