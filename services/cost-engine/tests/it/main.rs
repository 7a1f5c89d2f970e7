//! The cost engine on a real nats-server, a real SQLite file and a real PostgreSQL.

#![allow(clippy::unwrap_used, reason = "a test stops where something is wrong")]

mod accrual;
mod api;
mod bills;
mod budgets;
mod budgets_api;
mod committed;
mod costs;
mod crash;
mod damaged;
mod late;
mod nodes;
mod openapi;
mod periods;
mod price_book;
mod shared;
mod subtree;
mod support;
