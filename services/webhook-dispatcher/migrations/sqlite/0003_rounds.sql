-- What is delivered again, and why deliveries failed. migrations/postgres/0002_rounds.sql says what each column is.

ALTER TABLE deliveries ADD COLUMN round INTEGER NOT NULL DEFAULT 0;
ALTER TABLE deliveries ADD COLUMN cause TEXT NOT NULL DEFAULT '';
ALTER TABLE attempts ADD COLUMN cause TEXT NOT NULL DEFAULT '';
