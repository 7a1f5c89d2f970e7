-- For questions about nothing but a cluster, which say so with `seq > 0`. Without that condition SQLite, which has no statistics, would
-- take this index for every question about a cluster, and most ledgers are of one.
CREATE INDEX event_index_cluster ON event_index (cluster, seq) WHERE seq > 0;
