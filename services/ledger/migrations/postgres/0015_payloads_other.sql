-- Whether payloads_other has anything of a month is asked before its partition is made, every hour if it has.
CREATE INDEX payloads_other_recorded_at ON payloads_other (recorded_at);
