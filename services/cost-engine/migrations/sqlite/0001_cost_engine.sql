-- Runs that have started and not ended: what their final cost will be computed from. Gone once it is.
CREATE TABLE runs (
    cluster TEXT NOT NULL,
    run TEXT NOT NULL,
    display_id TEXT NOT NULL,
    user_name TEXT NOT NULL,
    account TEXT NOT NULL,
    partition_name TEXT NOT NULL,
    -- The job as its first event had it, as protobuf.
    job BLOB NOT NULL,
    PRIMARY KEY (cluster, run)
);

-- What happened to a run between its start and its end.
CREATE TABLE marks (
    cluster TEXT NOT NULL,
    run TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('suspended', 'resumed', 'resized')),
    -- Unix seconds.
    at BIGINT NOT NULL,
    -- Of a resize: the job with its new allocation, as protobuf.
    job BLOB,
    PRIMARY KEY (cluster, run, kind, at)
);

-- One row per run and kind, for ever. Sums are taken from here.
CREATE TABLE costs (
    cluster TEXT NOT NULL,
    run TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('estimated', 'finalized')),
    event_id TEXT NOT NULL UNIQUE,
    -- The job event it was computed from.
    cause_id TEXT NOT NULL,
    display_id TEXT NOT NULL,
    user_name TEXT NOT NULL,
    account TEXT NOT NULL,
    partition_name TEXT NOT NULL,
    class TEXT NOT NULL CHECK (class IN ('completed', 'not_completed', 'open')),
    currency TEXT NOT NULL,
    -- Millionths of the currency unit. NULL where there is no price.
    total_micros BIGINT,
    charged_seconds BIGINT NOT NULL,
    price_book TEXT NOT NULL,
    problem TEXT NOT NULL,
    -- Unix seconds of the start (estimated) or end (finalized), and the month of that, e.g. 2026-07 (UTC).
    at BIGINT NOT NULL,
    month TEXT NOT NULL,
    -- Unix seconds; NULL until JetStream has it.
    published_at BIGINT,
    PRIMARY KEY (cluster, run, kind)
);

CREATE INDEX costs_by_time ON costs (kind, at);
CREATE INDEX costs_by_user ON costs (user_name, kind, at);

-- Events that JetStream does not have yet, byte for byte as they will be published.
CREATE TABLE outbox (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    event_id TEXT NOT NULL UNIQUE,
    body BLOB NOT NULL,
    -- Trace of the job event behind it, as W3C traceparent; empty without telemetry. Not part of the event.
    traceparent TEXT NOT NULL
);
