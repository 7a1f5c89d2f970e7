-- What costs most is written once. migrations/postgres/0005_arrivals.sql says what it is about. SQLite changes no key, so the table is made anew.

CREATE TABLE arrivals (
    endpoint        TEXT    NOT NULL,
    event_id        TEXT    NOT NULL,
    event_type      TEXT    NOT NULL,
    state           TEXT    NOT NULL CHECK (state IN ('waiting', 'delivered', 'dead', 'expired')),
    attempts        INTEGER NOT NULL,
    next_at         BIGINT,
    status          INTEGER NOT NULL,
    error           TEXT    NOT NULL,
    created_at      BIGINT  NOT NULL,
    updated_at      BIGINT  NOT NULL,
    subject         TEXT    NOT NULL,
    stream_sequence BIGINT  NOT NULL,
    trace           TEXT    NOT NULL,
    pair            TEXT,
    body            BLOB,
    cost            BLOB,
    announced       INTEGER NOT NULL DEFAULT 0,
    round           INTEGER NOT NULL DEFAULT 0,
    cause           TEXT    NOT NULL DEFAULT '',
    began_at        BIGINT  NOT NULL DEFAULT 0,
    sent_at         BIGINT,
    latency_ms      BIGINT,
    snippet         TEXT,
    PRIMARY KEY (event_id, endpoint)
);
INSERT INTO arrivals (endpoint, event_id, event_type, state, attempts, next_at, status, error, created_at, updated_at, subject, stream_sequence,
    trace, pair, body, cost, announced, round, cause, began_at)
SELECT endpoint, event_id, event_type, state, attempts, next_at, status, error, created_at, updated_at, subject, stream_sequence,
    trace, pair, body, cost, announced, round, cause, began_at FROM deliveries;
DROP TABLE deliveries;
ALTER TABLE arrivals RENAME TO deliveries;

CREATE INDEX deliveries_due ON deliveries (endpoint, next_at) WHERE state = 'waiting';
CREATE INDEX deliveries_pairs ON deliveries (endpoint, pair) WHERE pair IS NOT NULL;
CREATE INDEX deliveries_outbox ON deliveries (updated_at) WHERE announced = 0 AND state <> 'waiting';
CREATE INDEX deliveries_states ON deliveries (endpoint, state, created_at);
CREATE INDEX deliveries_age ON deliveries (updated_at) WHERE state <> 'waiting' AND announced = 1;
CREATE INDEX deliveries_errors ON deliveries (endpoint, updated_at) WHERE error <> '';
