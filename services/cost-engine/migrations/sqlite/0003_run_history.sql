-- Runs stay after their end, with what their cost was computed from: late facts change it.
CREATE TABLE runs_with_history (
    cluster TEXT NOT NULL,
    run TEXT NOT NULL,
    display_id TEXT NOT NULL,
    user_name TEXT NOT NULL,
    account TEXT NOT NULL,
    partition_name TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('open', 'ended')),
    -- What pricing needs of the job when it was first seen running, as protobuf. NULL if its start was never seen.
    start_job BLOB,
    -- The same of the record of its end. NULL while it is open, and after an end that no record has.
    end_job BLOB,
    -- Unix seconds of the end. NULL where end_job is.
    ended_at BIGINT,
    PRIMARY KEY (cluster, run)
);
INSERT INTO runs_with_history (cluster, run, display_id, user_name, account, partition_name, state, start_job)
    SELECT cluster, run, display_id, user_name, account, partition_name, 'open', job FROM runs;
DROP TABLE runs;
ALTER TABLE runs_with_history RENAME TO runs;
CREATE INDEX runs_open ON runs (cluster, run) WHERE state = 'open';

-- Of a final cost: what it is after all adjustments. total_micros stays what cost.finalized said.
ALTER TABLE costs ADD COLUMN current_micros BIGINT;
UPDATE costs SET current_micros = total_micros;
ALTER TABLE costs DROP COLUMN published_at;

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

-- The book's text, so that a run is always priced by the book that priced it first. NULL for books from before this column.
ALTER TABLE price_books ADD COLUMN content TEXT;

-- Which process made it, and when (Unix milliseconds): another one publishes it only if that one does not.
ALTER TABLE outbox ADD COLUMN made_by TEXT NOT NULL DEFAULT '';
ALTER TABLE outbox ADD COLUMN made_at BIGINT NOT NULL DEFAULT 0;
