-- What is delivered again, and why deliveries failed.

-- How often a delivery was begun again; each round has an outcome of its own.
ALTER TABLE deliveries ADD COLUMN round BIGINT NOT NULL DEFAULT 0;
-- Why the last attempt failed, in one word; empty on success.
ALTER TABLE deliveries ADD COLUMN cause TEXT NOT NULL DEFAULT '';
ALTER TABLE attempts ADD COLUMN cause TEXT NOT NULL DEFAULT '';
