-- Of cost.estimated, what events about the accrued cost have, as protobuf. NULL once the run has ended, and for runs from before this column.
ALTER TABLE runs ADD COLUMN start_event BLOB;
-- Time of the newest cost.accrued in Unix seconds, and the highest amount that was published. 0 before the first one.
ALTER TABLE runs ADD COLUMN accrued_until BIGINT NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN accrued_micros BIGINT NOT NULL DEFAULT 0;
-- Day of that event, in days since 1970, and the number of events of the day.
ALTER TABLE runs ADD COLUMN accrued_day BIGINT NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN accrued_day_events BIGINT NOT NULL DEFAULT 0;
-- Number of the job event among those of its run. 0 for changes from before this column.
ALTER TABLE marks ADD COLUMN run_seq BIGINT NOT NULL DEFAULT 0;
