-- A retry of the failed tasks of an array: which retry of these tasks it is, and how many there are. NULL: it is none. job_id is the array.
ALTER TABLE intents ADD COLUMN array_attempt BIGINT;
ALTER TABLE intents ADD COLUMN tasks BIGINT NOT NULL DEFAULT 0;

-- The failures that joined such runs.
CREATE TABLE array_tasks (
    -- The key that a run for this event alone would have.
    event_key TEXT NOT NULL PRIMARY KEY,
    run_key TEXT NOT NULL,
    task BIGINT NOT NULL,
    -- The task's own job.
    job_id BIGINT NOT NULL,
    -- The task with its cause and what changes, as JSON.
    failed TEXT NOT NULL,
    -- 1 once a requeue of it may have been sent.
    is_sent BIGINT NOT NULL DEFAULT 0
);

CREATE INDEX array_tasks_by_run ON array_tasks (run_key, task);
CREATE INDEX array_tasks_by_job ON array_tasks (job_id);
