-- Indexes that cost each event more than they find: the entries of a run are found by its job or array; and most events are of jobs, so that who
-- asks for those goes through all.
DROP INDEX event_index_run;
DROP INDEX event_index_category;
CREATE INDEX event_index_category ON event_index (category, seq) WHERE category <> 'job';
