-- Counters by metric and label values. Values only grow.
CREATE TABLE counters (
    cluster TEXT NOT NULL,
    metric TEXT NOT NULL,
    -- Label values, separated by the ASCII unit separator.
    labels TEXT NOT NULL,
    value BIGINT NOT NULL,
    PRIMARY KEY (cluster, metric, labels)
);

-- Events that were counted, so that none counts twice.
CREATE TABLE counted (
    event_id TEXT NOT NULL PRIMARY KEY,
    -- Unix seconds at which it was counted.
    at BIGINT NOT NULL
);

CREATE INDEX counted_by_time ON counted (at);

-- Runs that hold GPUs or memory, from their start to their end.
CREATE TABLE allocations (
    cluster TEXT NOT NULL,
    run TEXT NOT NULL,
    partition_name TEXT NOT NULL,
    account TEXT NOT NULL,
    user_name TEXT NOT NULL,
    gpus BIGINT NOT NULL,
    memory_mib BIGINT NOT NULL,
    PRIMARY KEY (cluster, run)
);
