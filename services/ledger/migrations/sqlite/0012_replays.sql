-- Replays: who asked for which events to be told once more, and how far that is. Not part of the proof; what ended long ago is deleted.
-- Times are microseconds since 1970.
CREATE TABLE replays (
    id              TEXT PRIMARY KEY,
    owner           TEXT NOT NULL,     -- who asked, as they were known: only they (and administrators) see it
    idempotency_key TEXT,
    request         TEXT NOT NULL,     -- JSON: who asked, what they may see, which events, at which rate, for whom
    made_at         INTEGER NOT NULL,
    to_seq          INTEGER NOT NULL,
    cursor          INTEGER NOT NULL,  -- everything up to here was told
    sent            INTEGER NOT NULL DEFAULT 0,
    shown           TEXT NOT NULL,     -- JSON: whose data of other people was told
    state           TEXT NOT NULL CHECK (state IN ('running', 'done', 'failed', 'cancelled')),
    ended_at        INTEGER,
    cancelled_by    TEXT,
    problem         TEXT NOT NULL DEFAULT '',
    audited         INTEGER NOT NULL DEFAULT 0, -- 1: its beginning is in the audit; 2: its end is
    -- Somebody works on it until then; the fence counts who: a write of a former holder has no effect.
    lease_until     INTEGER NOT NULL DEFAULT 0,
    fence           INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX replays_idempotency ON replays (owner, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX replays_owner ON replays (owner, made_at);
CREATE INDEX replays_open ON replays (made_at) WHERE audited < 2;
