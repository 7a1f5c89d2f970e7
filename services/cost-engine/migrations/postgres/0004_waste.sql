-- Why the whole cost of a run that did not complete is lost; empty if it is not, and for runs from before this column.
ALTER TABLE costs ADD COLUMN lost TEXT NOT NULL DEFAULT '';
-- Cost of what a completed run held and did not use. NULL if not known.
ALTER TABLE costs ADD COLUMN unused_micros BIGINT;
