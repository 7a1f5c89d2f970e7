-- Pending runs, with what their cost at the time limit is computed from. Removed when they start or end.
CREATE TABLE pending_runs (
    cluster TEXT NOT NULL,
    run TEXT NOT NULL,
    user_name TEXT NOT NULL,
    account TEXT NOT NULL,
    tags TEXT NOT NULL,
    -- What pricing needs of the job, as protobuf.
    job BYTEA NOT NULL,
    PRIMARY KEY (cluster, run)
);
