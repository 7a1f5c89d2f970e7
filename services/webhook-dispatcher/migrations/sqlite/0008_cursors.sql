-- How far each endpoint is in a stream. migrations/postgres/0007_cursors.sql says what each column is.

CREATE TABLE cursors (
    endpoint       TEXT   NOT NULL,
    stream         TEXT   NOT NULL,
    stream_created BIGINT NOT NULL,
    settled        BIGINT NOT NULL,
    above          TEXT   NOT NULL,
    missed_first   BIGINT,
    missed_last    BIGINT,
    missed_count   BIGINT NOT NULL DEFAULT 0,
    missed_at      BIGINT,
    PRIMARY KEY (endpoint, stream)
);
