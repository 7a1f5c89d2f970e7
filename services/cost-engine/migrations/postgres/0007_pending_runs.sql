-- Pending runs, with what their cost at the time limit is computed from. Removed when they start.
CREATE TABLE pending_runs (
    cluster TEXT NOT NULL,
    run TEXT NOT NULL,
    -- Number of the newest event among those of the run.
    run_seq BIGINT NOT NULL,
    user_name TEXT NOT NULL,
    account TEXT NOT NULL,
    tags TEXT NOT NULL,
    -- What pricing needs of the job, as protobuf.
    job BYTEA NOT NULL,
    -- Unix seconds at which a run that never started was removed. Its row stays for some days, against redelivered events.
    removed_at BIGINT,
    PRIMARY KEY (cluster, run)
);
CREATE INDEX pending_runs_by_removal ON pending_runs (removed_at);

-- The partitions of each node now.
CREATE TABLE node_partitions (
    cluster TEXT NOT NULL,
    node TEXT NOT NULL,
    -- Time in Unix seconds and number of the newest event of the node.
    at BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    -- One per line. Empty once the node was removed.
    partitions TEXT NOT NULL,
    PRIMARY KEY (cluster, node)
);
