//! Deliveries of one endpoint.
//!
//! - [`endpoint_worker`]: the limits and attempts of an endpoint; [`loops`]: its tasks, which run only while they have
//!   something to do ([`on_demand`]); [`worker_context`]: what all endpoints share; [`lease`]: the right to send.
//! - [`handlers`]: events of the queue; [`catch_up`]: events that the queue missed; [`replays`]: replayed events.
//! - [`due`]: retries, digests and notices that are due; [`redeliver`]: dead letters that are sent again.
//! - [`array_digests`], [`pending`], [`costs`]: messages that are put together from several events.
//! - [`spending`]: what owners have spent, for messages to them alone.
//! - [`admission`], [`concurrency_limit`], [`auto_disable`]: whether a request may be sent now.
//! - [`post`]: one attempt; [`http`]: its request.
//! - [`outbox_publisher`]: audit entries and dead letters; [`retention_schedule`]: deletion of old outcomes.

pub mod admission;
pub mod array_digests;
pub mod auto_disable;
pub mod catch_up;
pub mod concurrency_limit;
pub mod costs;
pub mod due;
pub mod endpoint_worker;
pub mod handlers;
pub mod http;
pub mod lease;
pub mod loops;
pub mod on_demand;
pub mod outbox_publisher;
pub mod pending;
pub mod post;
pub mod redeliver;
pub mod replays;
pub mod retention_schedule;
pub mod spending;
pub mod worker_context;
