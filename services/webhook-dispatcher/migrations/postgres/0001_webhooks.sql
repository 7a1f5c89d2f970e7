-- Everything the dispatchers of one mesh keep. Times are Unix milliseconds, UTC. What belongs to an endpoint is kept under its name; a name
-- is free again only when nothing of the endpoint is left.

-- Endpoints: those made by the API, and those of mesh.toml, of which only the state is kept here.
CREATE TABLE endpoints (
    name        TEXT   NOT NULL PRIMARY KEY,
    id          TEXT   NOT NULL UNIQUE,  -- new with every creation; its sealed secrets are bound to it
    source      TEXT   NOT NULL CHECK (source IN ('api', 'file')),
    owner       TEXT   NOT NULL,         -- Unix user; empty for those of mesh.toml
    spec        TEXT   NOT NULL,         -- JSON, without anything secret
    secrets     BYTEA,                   -- sealed JSON
    state       TEXT   NOT NULL CHECK (state IN ('active', 'paused', 'disabled', 'removed')),
    reason      TEXT   NOT NULL DEFAULT '',
    since       BIGINT NOT NULL,         -- of the state
    revision    BIGINT NOT NULL,         -- grows with every change
    created_at  BIGINT NOT NULL,
    updated_at  BIGINT NOT NULL,
    unlisted_at BIGINT                   -- since when no replica has it in its mesh.toml
);

-- Dispatchers that are at work. One that was not heard of for a while loses its row, and with it every lease.
CREATE TABLE replicas (
    id      TEXT   NOT NULL PRIMARY KEY,
    seen    BIGINT NOT NULL,  -- by the server's clock
    leaving BIGINT NOT NULL,  -- 1: finishes what it holds and takes nothing more
    files   TEXT   NOT NULL   -- JSON: names of the endpoints of its mesh.toml
);

-- Who is at work on which endpoint. The epoch grows with every new holder and never goes back; who writes shows theirs.
CREATE TABLE leases (
    endpoint TEXT   NOT NULL PRIMARY KEY,
    holder   TEXT   NOT NULL,  -- empty: nobody
    epoch    BIGINT NOT NULL,
    since    BIGINT NOT NULL
);

-- Deliveries: one row per endpoint and event, from the first attempt until the outcome is forgotten.
--
-- The table is three things at once, so that one commit settles all of them: the queue of what waits (state 'waiting'), the memory of
-- what was done (nothing is sent twice), and the outbox of audit entries and dead letters (announced = 0).
CREATE TABLE deliveries (
    endpoint        TEXT   NOT NULL,
    event_id        TEXT   NOT NULL,
    event_type      TEXT   NOT NULL,
    state           TEXT   NOT NULL CHECK (state IN ('waiting', 'delivered', 'dead', 'expired')),
    attempts        BIGINT NOT NULL,
    next_at         BIGINT,           -- when it is tried next; only while waiting
    status          BIGINT NOT NULL,  -- HTTP status of the last attempt, 0 without an answer
    error           TEXT   NOT NULL,  -- of the last attempt; empty on success
    created_at      BIGINT NOT NULL,
    updated_at      BIGINT NOT NULL,
    subject         TEXT   NOT NULL,
    stream_sequence BIGINT NOT NULL,
    trace           TEXT   NOT NULL,  -- traceparent of the event; empty without one
    pair            TEXT,             -- which cost it waits for; only before the first attempt
    body            BYTEA,            -- the event as it was received; gone once delivered or expired
    cost            BYTEA,            -- the cost event that came for it
    announced       BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (endpoint, event_id)
);
CREATE INDEX deliveries_due ON deliveries (endpoint, next_at) WHERE state = 'waiting';
CREATE INDEX deliveries_pairs ON deliveries (endpoint, pair) WHERE pair IS NOT NULL;
CREATE INDEX deliveries_outbox ON deliveries (updated_at) WHERE announced = 0 AND state <> 'waiting';
CREATE INDEX deliveries_states ON deliveries (endpoint, state);
CREATE INDEX deliveries_age ON deliveries (updated_at);

-- What a chat missed because it was too old, until its one message about that is on its way.
CREATE TABLE missed (
    endpoint TEXT   NOT NULL PRIMARY KEY,
    first_id TEXT   NOT NULL,
    count    BIGINT NOT NULL,
    last_at  BIGINT NOT NULL
);

-- Every request that was made.
CREATE TABLE attempts (
    endpoint   TEXT   NOT NULL,
    event_id   TEXT   NOT NULL,
    n          BIGINT NOT NULL,  -- the first is 1
    at         BIGINT NOT NULL,
    status     BIGINT NOT NULL,  -- 0 without an answer
    latency_ms BIGINT NOT NULL,
    error      TEXT   NOT NULL,  -- empty on success
    snippet    TEXT   NOT NULL,  -- beginning of the answer's body
    next_at    BIGINT,           -- when the next one is planned; NULL for the last
    PRIMARY KEY (endpoint, event_id, n)
);
CREATE INDEX attempts_age ON attempts (at);

-- What was asked to be delivered again: done a piece at a time, so that a restart goes on where it was.
CREATE TABLE redeliveries (
    id         TEXT   NOT NULL PRIMARY KEY,
    endpoint   TEXT   NOT NULL,
    filter     TEXT   NOT NULL,             -- JSON
    cursor     TEXT   NOT NULL DEFAULT '',  -- how far it is
    state      TEXT   NOT NULL CHECK (state IN ('running', 'done', 'failed', 'cancelled')),
    queued     BIGINT NOT NULL DEFAULT 0,
    error      TEXT   NOT NULL DEFAULT '',
    by         TEXT   NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);
CREATE INDEX redeliveries_running ON redeliveries (endpoint) WHERE state = 'running';

-- What a format remembers of what it sent: the message of a chat that is kept current, the key of an alert.
CREATE TABLE kept (
    endpoint   TEXT   NOT NULL,
    key        TEXT   NOT NULL,
    value      TEXT   NOT NULL,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (endpoint, key)
);
CREATE INDEX kept_age ON kept (updated_at);

-- Acts of people that are to be told to the audit.
CREATE TABLE acts (
    id   TEXT NOT NULL PRIMARY KEY,
    body BYTEA NOT NULL
);
