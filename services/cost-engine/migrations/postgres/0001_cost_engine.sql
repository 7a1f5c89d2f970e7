-- Runs that have started, with what their cost is computed from. They stay after their end: late facts change it.
CREATE TABLE runs (
    cluster TEXT NOT NULL,
    run TEXT NOT NULL,
    display_id TEXT NOT NULL,
    user_name TEXT NOT NULL,
    account TEXT NOT NULL,
    partition_name TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('open', 'ended')),
    -- What pricing needs of the job when it was first seen running, as protobuf. NULL if its start was never seen.
    start_job BYTEA,
    -- The same of the record of its end. NULL while it is open, and after an end that no record has.
    end_job BYTEA,
    -- Unix seconds of the end. NULL where end_job is.
    ended_at BIGINT,
    PRIMARY KEY (cluster, run)
);
CREATE INDEX runs_open ON runs (cluster, run) WHERE state = 'open';

-- What happened to a run between its start and its end.
CREATE TABLE marks (
    cluster TEXT NOT NULL,
    run TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('suspended', 'resumed', 'resized')),
    -- Unix seconds.
    at BIGINT NOT NULL,
    -- Of a resize: what pricing needs of the job with its new allocation, as protobuf.
    job BYTEA,
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
    -- Millionths of the currency unit, as the event said. NULL where there is no price.
    total_micros BIGINT,
    -- Of a final cost: what it is after all adjustments.
    current_micros BIGINT,
    charged_seconds BIGINT NOT NULL,
    price_book TEXT NOT NULL,
    problem TEXT NOT NULL,
    -- Unix seconds of the start (estimated) or end (finalized), and the month of that, e.g. 2026-07 (UTC).
    at BIGINT NOT NULL,
    month TEXT NOT NULL,
    PRIMARY KEY (cluster, run, kind)
);
CREATE INDEX costs_by_time ON costs (kind, at);
CREATE INDEX costs_by_user ON costs (user_name, kind, at);

-- Changes of final costs, one row for each cost.adjusted, for ever. A final cost and its deltas add up to current_micros.
CREATE TABLE adjustments (
    event_id TEXT NOT NULL PRIMARY KEY,
    cluster TEXT NOT NULL,
    run TEXT NOT NULL,
    -- The job event that told the late fact.
    cause_id TEXT NOT NULL,
    reason TEXT NOT NULL CHECK (reason IN ('late_fact')),
    -- Millionths of the currency unit. NULL if there was no price before.
    previous_micros BIGINT,
    delta_micros BIGINT NOT NULL,
    total_micros BIGINT NOT NULL
);
CREATE INDEX adjustments_by_run ON adjustments (cluster, run);

-- Events that JetStream does not have yet, byte for byte as they will be published.
CREATE TABLE outbox (
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id TEXT NOT NULL UNIQUE,
    body BYTEA NOT NULL,
    -- Trace of the job event behind it, as W3C traceparent; empty without telemetry. Not part of the event.
    traceparent TEXT NOT NULL,
    -- Which process made it, and when (Unix milliseconds): another one publishes it only if that one does not.
    made_by TEXT NOT NULL,
    made_at BIGINT NOT NULL
);

-- Which prices a name and version stand for: costs carry both, so they never stand for others.
CREATE TABLE price_books (
    -- Name and version, as cost events carry them.
    label TEXT NOT NULL PRIMARY KEY,
    -- SHA-256 of the book's content, in hexadecimal digits; comments and layout do not count.
    digest TEXT NOT NULL,
    -- The book's text, so that a run is always priced by the book that priced it first.
    content TEXT
);
