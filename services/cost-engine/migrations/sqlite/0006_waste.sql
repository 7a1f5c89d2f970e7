-- Why the whole cost of a run that did not complete is lost; empty if it is not, and for runs from before this column.
ALTER TABLE costs ADD COLUMN lost TEXT NOT NULL DEFAULT '';
-- Cost of what a completed run held and did not use. NULL if not known.
ALTER TABLE costs ADD COLUMN unused_micros BIGINT;

-- The same table with another reason: what a run used has a row as well, with a delta of 0.
ALTER TABLE adjustments RENAME TO adjustments_before;
DROP INDEX adjustments_by_run;
CREATE TABLE adjustments (
    event_id TEXT NOT NULL PRIMARY KEY,
    cluster TEXT NOT NULL,
    run TEXT NOT NULL,
    -- The job event that told the late fact.
    cause_id TEXT NOT NULL,
    reason TEXT NOT NULL CHECK (reason IN ('late_fact', 'usage')),
    -- Millionths of the currency unit. NULL if there was no price before.
    previous_micros BIGINT,
    delta_micros BIGINT NOT NULL,
    total_micros BIGINT NOT NULL
);
CREATE INDEX adjustments_by_run ON adjustments (cluster, run);
INSERT INTO adjustments (event_id, cluster, run, cause_id, reason, previous_micros, delta_micros, total_micros)
    SELECT event_id, cluster, run, cause_id, reason, previous_micros, delta_micros, total_micros FROM adjustments_before;
DROP TABLE adjustments_before;
