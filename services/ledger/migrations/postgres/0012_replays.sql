-- As migrations/sqlite/0012_replays.sql, where the comments are.
CREATE TABLE replays (
    id              TEXT COLLATE "C" PRIMARY KEY,
    owner           TEXT COLLATE "C" NOT NULL,
    idempotency_key TEXT COLLATE "C",
    request         TEXT NOT NULL,
    made_at         BIGINT NOT NULL,
    to_seq          BIGINT NOT NULL,
    cursor          BIGINT NOT NULL,
    sent            BIGINT NOT NULL DEFAULT 0,
    shown           TEXT NOT NULL,
    state           TEXT NOT NULL CHECK (state IN ('running', 'done', 'failed', 'cancelled')),
    ended_at        BIGINT,
    cancelled_by    TEXT,
    problem         TEXT NOT NULL DEFAULT '',
    audited         BIGINT NOT NULL DEFAULT 0,
    lease_until     BIGINT NOT NULL DEFAULT 0,
    fence           BIGINT NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX replays_idempotency ON replays (owner, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX replays_owner ON replays (owner, made_at);
CREATE INDEX replays_open ON replays (made_at) WHERE audited < 2;
