-- What costs most is written once: a delivery that arrives with its first attempt, as most do, has that in its own row.

-- When that attempt began, how long it took, and the beginning of the answer's body. NULL where attempts have rows of their own.
ALTER TABLE deliveries ADD COLUMN sent_at BIGINT;
ALTER TABLE deliveries ADD COLUMN latency_ms BIGINT;
ALTER TABLE deliveries ADD COLUMN snippet TEXT;

-- An event comes to all of its endpoints at about the same time: with the event first, their rows are side by side in the index.
ALTER TABLE deliveries DROP CONSTRAINT deliveries_pkey;
ALTER TABLE deliveries ADD PRIMARY KEY (event_id, endpoint);
