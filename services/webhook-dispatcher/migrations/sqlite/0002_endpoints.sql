-- Endpoints, who is at work on them, and what is remembered of them. migrations/postgres/0001_webhooks.sql says what each table is.

ALTER TABLE away RENAME TO missed;

CREATE TABLE endpoints (
    name        TEXT    NOT NULL PRIMARY KEY,
    id          TEXT    NOT NULL UNIQUE,
    source      TEXT    NOT NULL CHECK (source IN ('api', 'file')),
    owner       TEXT    NOT NULL,
    spec        TEXT    NOT NULL,
    secrets     BLOB,
    state       TEXT    NOT NULL CHECK (state IN ('active', 'paused', 'disabled', 'removed')),
    reason      TEXT    NOT NULL DEFAULT '',
    since       BIGINT  NOT NULL,
    revision    BIGINT  NOT NULL,
    created_at  BIGINT  NOT NULL,
    updated_at  BIGINT  NOT NULL,
    unlisted_at BIGINT
);

-- Those of mesh.toml that have been at work: what waits for one that is there no more is ended as that of any removed endpoint.
INSERT INTO endpoints (name, id, source, owner, spec, state, since, revision, created_at, updated_at)
SELECT endpoint, lower(hex(randomblob(16))), 'file', '', '{}', 'active', 0, 1, MIN(created_at), MIN(created_at)
FROM deliveries GROUP BY endpoint;

CREATE TABLE replicas (
    id      TEXT   NOT NULL PRIMARY KEY,
    seen    BIGINT NOT NULL,
    leaving BIGINT NOT NULL,
    files   TEXT   NOT NULL
);

CREATE TABLE leases (
    endpoint TEXT   NOT NULL PRIMARY KEY,
    holder   TEXT   NOT NULL,
    epoch    BIGINT NOT NULL,
    since    BIGINT NOT NULL
);

CREATE TABLE attempts (
    endpoint   TEXT    NOT NULL,
    event_id   TEXT    NOT NULL,
    n          BIGINT  NOT NULL,
    at         BIGINT  NOT NULL,
    status     BIGINT  NOT NULL,
    latency_ms BIGINT  NOT NULL,
    error      TEXT    NOT NULL,
    snippet    TEXT    NOT NULL,
    next_at    BIGINT,
    PRIMARY KEY (endpoint, event_id, n)
);
CREATE INDEX attempts_age ON attempts (at);

CREATE TABLE redeliveries (
    id         TEXT   NOT NULL PRIMARY KEY,
    endpoint   TEXT   NOT NULL,
    filter     TEXT   NOT NULL,
    cursor     TEXT   NOT NULL DEFAULT '',
    state      TEXT   NOT NULL CHECK (state IN ('running', 'done', 'failed', 'cancelled')),
    queued     BIGINT NOT NULL DEFAULT 0,
    error      TEXT   NOT NULL DEFAULT '',
    by         TEXT   NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);
CREATE INDEX redeliveries_running ON redeliveries (endpoint) WHERE state = 'running';

CREATE TABLE kept (
    endpoint   TEXT   NOT NULL,
    key        TEXT   NOT NULL,
    value      TEXT   NOT NULL,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (endpoint, key)
);
CREATE INDEX kept_age ON kept (updated_at);

CREATE TABLE acts (
    id   TEXT NOT NULL PRIMARY KEY,
    body BLOB NOT NULL
);
