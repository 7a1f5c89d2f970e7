//! The workflow-trigger on a real NATS server, real databases and, where jobs run, a real Slurm cluster.

#![allow(clippy::unwrap_used, reason = "a test stops where its set-up fails")]

mod access;
mod api_rules;
mod approval;
mod approvers;
mod array_acts;
mod arrays;
mod budgets;
mod claims;
mod cluster;
mod concurrency;
mod copies;
mod cron;
mod ends;
mod examples;
mod guards;
mod incoming;
mod jobs;
mod killed;
mod killed_requests;
mod openapi;
mod pages;
mod recovered;
mod replicas;
mod run_as;
mod support;
