-- Why the whole cost of a run that did not complete is lost; empty if it is not, and for runs from before this column.
ALTER TABLE costs ADD COLUMN lost TEXT NOT NULL DEFAULT '';
-- Cost of what a completed run held and did not use. NULL if not known.
ALTER TABLE costs ADD COLUMN unused_micros BIGINT;

-- What a run used has a row as well, with a delta of 0.
ALTER TABLE adjustments DROP CONSTRAINT adjustments_reason_check;
ALTER TABLE adjustments ADD CONSTRAINT adjustments_reason_check CHECK (reason IN ('late_fact', 'usage'));
