//! An endpoint that this dispatcher owns: its lease, and its worker, or its removal.

use std::sync::Arc;

use mesh_runtime::return_freed_memory;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::removal;
use crate::delivery::EndpointWorker;
use crate::delivery::lease::Lease;
use crate::delivery::worker_context::WorkerContext;
use crate::repeat::RETRY_INTERVAL;

/// So many endpoints that start together leave memory behind that is worth giving back.
const MANY_ENDPOINTS: usize = 256;

/// An endpoint that this dispatcher owns.
pub struct ActiveEndpoint {
    /// The lease.
    pub lease: Lease,
    /// Revision of the definition.
    pub revision: i64,
    /// `None` if the endpoint is being removed or cannot be loaded.
    pub worker: Option<Arc<EndpointWorker>>,
    /// Cancelled when the endpoint has to stop.
    pub stop: CancellationToken,
    /// Ends when the endpoint has stopped or is removed. `None` while a worker runs on demand.
    pub ending: Option<JoinHandle<()>>,
    /// Wakes the pool at its end.
    pub wake: Arc<Notify>,
}

impl ActiveEndpoint {
    /// Removes the endpoint.
    pub fn remove(&mut self, shared: Arc<WorkerContext>) {
        let (lease, stop) = (self.lease.clone(), self.stop.clone());
        self.end_with(removal::remove(shared, lease, stop));
    }

    /// Stops the endpoint, after its requests in flight are finished.
    pub fn stop(&mut self) {
        self.stop.cancel();
        if self.ending.is_none() {
            let worker = self.worker.clone();
            self.end_with(async move {
                if let Some(worker) = worker {
                    worker.finish().await;
                }
            });
        }
    }

    fn end_with(&mut self, end: impl Future<Output = ()> + Send + 'static) {
        let wake = Arc::clone(&self.wake);
        self.ending = Some(tokio::spawn(async move {
            end.await;
            wake.notify_one();
        }));
    }

    /// True if it has to stop, or has ended.
    pub fn is_over(&self) -> bool {
        self.stop.is_cancelled() || self.has_ended()
    }

    /// True if it has ended.
    pub fn has_ended(&self) -> bool {
        self.ending.as_ref().is_some_and(JoinHandle::is_finished)
    }
}

/// Starts workers. Their positions are loaded one after the other: a task for each of thousands would take more memory
/// than they do.
pub async fn begin(shared: Arc<WorkerContext>, mut workers: Vec<Arc<EndpointWorker>>) {
    let are_many = workers.len() >= MANY_ENDPOINTS;
    let waiting = shared.store.with_waiting().await;
    for worker in &workers {
        let name = &worker.endpoint.name;
        // Without an answer each looks for itself.
        if waiting.as_ref().map_or(true, |names| names.contains(name)) {
            worker.wake();
        }
        if shared.replayed().contains_key(name) {
            worker.handle_replays();
        }
    }
    while !workers.is_empty() {
        let mut failed = Vec::new();
        for worker in workers {
            let loaded = worker.load_position(0);
            match worker.stop.run_until_cancelled(loaded).await {
                None => {}
                Some(Ok(())) => worker.attach(),
                Some(Err(error)) => {
                    let (error, endpoint) =
                        (mesh_runtime::error_chain(&error), &worker.endpoint.name);
                    tracing::warn!(error, endpoint, "read cursor failed, retrying");
                    failed.push(worker);
                }
            }
        }
        workers = failed;
        if !workers.is_empty() {
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }
    if are_many {
        return_freed_memory();
    }
}
