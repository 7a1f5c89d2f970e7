-- Deliveries: one row per endpoint and event, from the first attempt until the outcome is forgotten.
--
-- The table is three things at once, so that one commit settles all of them: the queue of what waits (state 'waiting'), the memory of
-- what was done (nothing is sent twice), and the outbox of audit entries and dead letters (announced = 0).
-- Times are Unix milliseconds, UTC.
CREATE TABLE deliveries (
    endpoint        TEXT    NOT NULL,
    event_id        TEXT    NOT NULL,
    event_type      TEXT    NOT NULL,
    state           TEXT    NOT NULL CHECK (state IN ('waiting', 'delivered', 'dead', 'expired')),
    attempts        INTEGER NOT NULL,
    next_at         BIGINT,            -- when it is tried next; only while waiting
    status          INTEGER NOT NULL,  -- HTTP status of the last attempt, 0 without an answer
    error           TEXT    NOT NULL,  -- of the last attempt; empty on success
    created_at      BIGINT  NOT NULL,
    updated_at      BIGINT  NOT NULL,
    subject         TEXT    NOT NULL,
    stream_sequence BIGINT  NOT NULL,
    trace           TEXT    NOT NULL,  -- traceparent of the event; empty without one
    pair            TEXT,              -- which cost it waits for; only before the first attempt
    body            BLOB,              -- the event as it was received; gone once delivered or expired
    cost            BLOB,              -- the cost event that came for it
    announced       INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (endpoint, event_id)
);
CREATE INDEX deliveries_due ON deliveries (endpoint, next_at) WHERE state = 'waiting';
CREATE INDEX deliveries_pairs ON deliveries (endpoint, pair) WHERE pair IS NOT NULL;
CREATE INDEX deliveries_outbox ON deliveries (updated_at) WHERE announced = 0 AND state <> 'waiting';
CREATE INDEX deliveries_states ON deliveries (endpoint, state);
CREATE INDEX deliveries_age ON deliveries (updated_at);

-- What a chat missed because it was too old, until its one message about that is on its way.
CREATE TABLE away (
    endpoint TEXT    NOT NULL PRIMARY KEY,
    first_id TEXT    NOT NULL,
    count    BIGINT  NOT NULL,
    last_at  BIGINT  NOT NULL
);
