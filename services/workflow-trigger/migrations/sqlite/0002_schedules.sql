-- The latest instant of each rule's schedule that was handled.
CREATE TABLE schedules (
    owner TEXT NOT NULL,
    name TEXT NOT NULL,
    schedule TEXT NOT NULL,
    last_at BIGINT NOT NULL,
    PRIMARY KEY (owner, name)
);
