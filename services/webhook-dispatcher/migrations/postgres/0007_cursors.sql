-- How far each endpoint is in a stream: written in the transaction that stores the outcome of an event.
CREATE TABLE cursors (
    endpoint       TEXT   NOT NULL,
    stream         TEXT   NOT NULL,
    stream_created BIGINT NOT NULL,           -- nanoseconds; a stream that is made anew counts from 1 again
    settled        BIGINT NOT NULL,           -- every message up to this sequence is settled
    above          TEXT   NOT NULL,           -- settled ones above it: 7,9-12
    missed_first   BIGINT,                    -- the sequences that the stream last lacked when the endpoint came to them
    missed_last    BIGINT,
    missed_count   BIGINT NOT NULL DEFAULT 0, -- of all times
    missed_at      BIGINT,
    PRIMARY KEY (endpoint, stream)
);
