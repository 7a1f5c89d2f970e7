//! Ingest against a real Slurm cluster and a real nats-server.

#![allow(clippy::unwrap_used, reason = "a test stops where its set-up fails")]

mod backup;
mod cancelled;
mod clock;
mod cluster;
mod crowded;
mod deleted;
mod doorbell;
mod drift;
mod finished;
mod forged;
mod forgotten;
mod forgotten_tasks;
mod full;
mod gaps;
mod genuine;
mod implausible;
mod lifecycle;
mod lost_state;
mod memory;
mod mesh;
mod outage;
mod people;
mod polite;
mod qos;
mod quick;
mod replicas;
mod resized;
mod rest;
mod rival;
mod rows;
mod scale;
mod scrontab;
mod snapshot;
mod stand_in;
mod start;
mod steps;
mod suspended;
mod transitions;
mod two;
mod unreadable;
mod usage;
mod users;
mod users_rest;
