//! The loops of an endpoint. They run on demand: an idle endpoint has no task.

use std::sync::{Arc, Weak};

use tokio_util::task::TaskTracker;

use super::on_demand::OnDemand;
use super::{EndpointWorker, handlers, redeliver, replays};
use crate::metrics;
use crate::stream::queue::EventHandler;

/// The loops of an endpoint.
pub struct Loops {
    this: Weak<EndpointWorker>,
    /// False while the endpoint is paused or disabled: no loop is started.
    is_active: bool,
    tasks: TaskTracker,
    due: OnDemand,
    live: OnDemand,
    replayed: OnDemand,
    redelivery: OnDemand,
}

impl Loops {
    /// No loop runs.
    pub fn new(this: Weak<EndpointWorker>, is_active: bool) -> Self {
        Self {
            this,
            is_active,
            tasks: TaskTracker::new(),
            due: OnDemand::default(),
            live: OnDemand::default(),
            replayed: OnDemand::default(),
            redelivery: OnDemand::default(),
        }
    }
}

impl EventHandler for EndpointWorker {
    /// Starts the loop that handles events, unless it runs.
    fn handle_events(&self) {
        self.start(
            |loops| &loops.live,
            |worker| async move { handlers::consume(&worker, &worker.events).await },
        );
    }
}

/// Stops the worker of a task that panicked. It is started again at the next reconciliation.
struct RestartAfterPanic(Arc<EndpointWorker>);

impl Drop for RestartAfterPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let endpoint = &self.0.endpoint.name;
            tracing::error!(endpoint, "endpoint task panicked, restarting");
            self.0.stop.cancel();
        }
    }
}

impl EndpointWorker {
    /// Starts or wakes the loop that sends deliveries that are due.
    pub fn wake(&self) {
        self.wake.notify_one();
        self.start(|loops| &loops.due, Self::retry);
    }

    /// Starts the loop that handles replayed events, unless it runs.
    pub fn handle_replays(&self) {
        self.start(
            |loops| &loops.replayed,
            |worker| async move { replays::consume(&worker).await },
        );
    }

    /// Starts the loop that puts dead letters back into the queue, unless it runs.
    pub fn redeliver(&self) {
        self.start(
            |loops| &loops.redelivery,
            |worker| async move { redeliver::run(&worker).await },
        );
    }

    /// Runs a loop's work in a task until nobody asks for it any more, unless it runs already.
    fn start<F: Future<Output = ()> + Send + 'static>(
        &self,
        of: fn(&Loops) -> &OnDemand,
        run: fn(Arc<Self>) -> F,
    ) {
        if !self.loops.is_active || self.stop.is_cancelled() {
            return;
        }
        let this = self.loops.this.upgrade();
        if let Some(this) = this.filter(|_| of(&self.loops).request()) {
            let panicked = RestartAfterPanic(Arc::clone(&this));
            self.loops.tasks.spawn(async move {
                let _panicked = panicked;
                run(Arc::clone(&this)).await;
                while !of(&this.loops).ends() {
                    run(Arc::clone(&this)).await;
                }
            });
        }
    }

    /// Attaches the endpoint to the reader, or starts the loop that catches up.
    pub fn attach(&self) {
        if self.loops.is_active && !self.shared.reader.attach(&self.events) {
            self.handle_events();
        }
    }

    /// Stops, after the requests in flight are finished.
    pub async fn finish(&self) {
        self.stop.cancel();
        self.loops.tasks.close();
        self.loops.tasks.wait().await;
        self.shared.reader.leave(&self.events);
        self.save_position(&self.events).await;
        // The next owner reports the circuit's state.
        metrics::circuit(&self.endpoint.name, false);
    }
}
