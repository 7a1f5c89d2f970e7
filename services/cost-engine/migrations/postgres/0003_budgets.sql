-- Tags of the job, `key=value`, one per line. Empty for runs from before this column.
ALTER TABLE runs ADD COLUMN tags TEXT NOT NULL DEFAULT '';
ALTER TABLE costs ADD COLUMN tags TEXT NOT NULL DEFAULT '';

-- What was published of a budget in a period.
CREATE TABLE budget_states (
    budget TEXT NOT NULL,
    -- Name of the period, such as 2026-11.
    period TEXT NOT NULL,
    -- Start of the period in Unix seconds; 0 for rolling periods.
    starts_at BIGINT NOT NULL,
    -- Highest threshold in percent that is passed and published; 0 if none is.
    threshold BIGINT NOT NULL,
    -- 1 if the forecast was published.
    forecast BIGINT NOT NULL,
    -- Counts how often the use fell below a published threshold, from 1.
    crossing BIGINT NOT NULL,
    -- Number of published events.
    events BIGINT NOT NULL,
    PRIMARY KEY (budget, period)
);
