-- What one rule does because of one event. Times are microseconds since 1970.
CREATE TABLE intents (
    -- The key that the job carries in its comment.
    key TEXT NOT NULL PRIMARY KEY,
    rule_owner TEXT NOT NULL,
    rule_name TEXT NOT NULL,
    generation BIGINT NOT NULL,
    state TEXT NOT NULL,
    event_id TEXT NOT NULL,
    event_type TEXT NOT NULL,
    cluster TEXT NOT NULL,
    event_at BIGINT NOT NULL,
    fired_by TEXT NOT NULL,
    -- The first event of the chain, and the jobs of rules between it and this one.
    root TEXT NOT NULL,
    depth BIGINT NOT NULL,
    -- What it does, as JSON. Empty if it was refused before that was decided.
    action TEXT NOT NULL,
    -- 1 if it was planned: not refused by a guard, and no dry run.
    is_firing BIGINT NOT NULL,
    -- 1 if a job runs because of it.
    starts_job BIGINT NOT NULL,
    job_id BIGINT,
    attempts BIGINT NOT NULL DEFAULT 0,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    -- When the first attempt was sent to Slurm.
    sent_at BIGINT,
    accepted_at BIGINT,
    released_at BIGINT,
    ended_at BIGINT,
    ended_as TEXT NOT NULL DEFAULT '',
    error TEXT NOT NULL DEFAULT '',
    traceparent TEXT NOT NULL DEFAULT '',
    -- When the driver takes it next. NULL if there is nothing to do.
    next_at BIGINT,
    -- The driver that has it, until a time after which another may take it.
    claimed_by TEXT NOT NULL DEFAULT '',
    claimed_until BIGINT NOT NULL DEFAULT 0
);

CREATE INDEX intents_due ON intents (next_at) WHERE next_at IS NOT NULL;
CREATE INDEX intents_by_rule ON intents (rule_owner, rule_name, created_at);
CREATE INDEX intents_by_time ON intents (created_at);
CREATE INDEX intents_by_root ON intents (root);
CREATE INDEX intents_by_job ON intents (job_id) WHERE job_id IS NOT NULL;

-- What is stored about a rule beside its configuration.
CREATE TABLE rules (
    owner TEXT NOT NULL,
    name TEXT NOT NULL,
    -- NULL if the rule is not paused.
    paused_at BIGINT,
    paused_by TEXT NOT NULL DEFAULT '',
    reason TEXT NOT NULL DEFAULT '',
    refusals_in_row BIGINT NOT NULL DEFAULT 0,
    last_refusal TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (owner, name)
);

-- Audit entries that are not in JetStream yet.
CREATE TABLE outbox (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL,
    cluster TEXT NOT NULL,
    body BLOB NOT NULL
);
