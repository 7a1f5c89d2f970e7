//! Makes the pages from the newest snapshots and counters, at an interval. A scrape copies what was made.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use chrono::{DateTime, TimeDelta, Utc};
use flate2::Compression;
use flate2::write::GzEncoder;
use mesh_bus::Bus;
use mesh_events::from_timestamp;
use mesh_runtime::Condition;
use tokio_util::sync::CancellationToken;

use crate::adapters::snapshots;
use crate::adapters::store::Store;
use crate::config::Config;
use crate::domain::exemplars::SharedExemplars;
use crate::domain::exposition::{Exposition, Format};
use crate::domain::scheduler::Scheduler;
use crate::error::Error;
use crate::families::{Family, Inputs, PAGES, Source};
use crate::metrics;

/// How long the ids of counted events are stored: longer than the bus has them.
const COUNTED_FOR: TimeDelta = TimeDelta::days(16);
const EXPIRE_INTERVAL: Duration = Duration::from_secs(3600);

/// A page in one format.
#[derive(Clone, Debug)]
pub struct Body {
    /// As it is.
    pub plain: Bytes,
    /// Compressed by gzip.
    pub gzip: Bytes,
}

/// The pages by name.
pub type Pages = BTreeMap<&'static str, BTreeMap<bool, Body>>;

/// The newest pages; empty before the first.
pub type Published = Arc<RwLock<Arc<Pages>>>;

/// Makes the pages.
pub struct Refresher {
    /// Bus with the snapshots.
    pub bus: Bus,
    /// Counters.
    pub store: Store,
    /// Settings.
    pub config: Config,
    /// Slurm's ClusterName.
    pub cluster: String,
    /// Newest exemplars.
    pub exemplars: SharedExemplars,
    /// Where the pages go.
    pub published: Published,
    /// Condition: the pages are made.
    pub health: Condition,
}

impl Refresher {
    /// Makes pages until shutdown.
    pub async fn run(&self, shutdown: &CancellationToken) {
        let mut expired: Option<Instant> = None;
        loop {
            let began = Instant::now();
            match self.refresh().await {
                Ok(()) => {
                    metrics::refreshed(began.elapsed());
                    self.health.ok();
                }
                Err(error) => {
                    metrics::failed();
                    // Old pages would show the past as the present.
                    self.publish(Pages::default());
                    self.health.fail(mesh_runtime::error_chain(&error));
                    tracing::debug!(
                        error = mesh_runtime::error_chain(&error),
                        "metrics not refreshed"
                    );
                }
            }
            if expired.is_none_or(|at| at.elapsed() > EXPIRE_INTERVAL) {
                let before = (Utc::now() - COUNTED_FOR).timestamp();
                match self.store.expire(before).await {
                    Ok(()) => expired = Some(Instant::now()),
                    Err(error) => tracing::debug!(
                        error = mesh_runtime::error_chain(&error),
                        "counted events not expired"
                    ),
                }
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(self.config.refresh_interval) => {}
            }
        }
    }

    async fn refresh(&self) -> Result<(), Error> {
        let now = Utc::now();
        let (jobs, scheduler) = match snapshots::jobs(&self.bus, &self.cluster).await? {
            Some((jobs, scheduler)) => (Some(jobs), scheduler),
            None => (None, None),
        };
        let nodes = snapshots::nodes(&self.bus, &self.cluster).await?;
        let source = |name, taken_at: Option<DateTime<Utc>>, interval: u32| {
            // What is read once an hour is not stale after three minutes.
            let intervals = Duration::from_secs(u64::from(interval) * 3);
            let stale_after = self.config.stale_after.max(intervals);
            Source {
                name,
                taken_at,
                is_up: taken_at
                    .is_some_and(|at| (now - at).to_std().unwrap_or_default() < stale_after),
            }
        };
        let mut sources = vec![
            source("ingest", jobs.as_ref().map(|jobs| jobs.taken_at), 0),
            source(
                "node-watcher",
                nodes.as_ref().map(|nodes| nodes.taken_at),
                0,
            ),
        ];
        let mut recent = Scheduler::default();
        if let Some(state) = scheduler {
            let at = |time: &Option<_>| time.as_ref().and_then(from_timestamp);
            let (interval, shares_interval) =
                (state.interval_seconds, state.shares_interval_seconds);
            let read = source("scheduler", at(&state.taken_at), interval);
            let shares = source("shares", at(&state.shares_taken_at), shares_interval);
            // A source that is not configured is not down.
            sources.extend((interval > 0).then_some(read));
            sources.extend((shares_interval > 0).then_some(shares));
            recent = Scheduler::recent(state, read.is_up, shares.is_up);
        }
        let inputs = Inputs {
            cluster: self.cluster.clone(),
            now,
            jobs: jobs.filter(|_| sources[0].is_up),
            nodes: nodes.filter(|_| sources[1].is_up),
            scheduler: recent,
            sources,
            counters: self.store.counters(&self.cluster).await?,
            exemplars: self.exemplars.snapshot(),
            allocations: self.store.allocations(&self.cluster).await?,
            gpu_holders: self.store.gpu_holders(&self.cluster).await?,
            max_series: self.config.max_series,
            folded: Vec::new(),
        };
        self.publish(pages(inputs, &self.config.families));
        Ok(())
    }

    fn publish(&self, pages: Pages) {
        let mut published = self
            .published
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        *published = Arc::new(pages);
    }
}

/// All pages of these families.
pub fn pages(mut inputs: Inputs, families: &BTreeSet<Family>) -> Pages {
    let mut pages = Pages::new();
    for page in PAGES.iter().filter(|page| families.contains(&page.family)) {
        let mut bodies = BTreeMap::new();
        // Names of others may end like a counter's and be gauges, which OpenMetrics does not allow.
        let formats: &[Format] = match page.family {
            Family::Cluster => &[Format::Text, Format::OpenMetrics],
            _ => &[Format::Text],
        };
        for format in formats {
            let mut exposition = Exposition::new(*format);
            let folded = (page.write)(&inputs, &mut exposition);
            let (text, series) = exposition.finish();
            if *format == Format::Text {
                metrics::page(page.name, series);
                inputs.folded.push((page.name, folded));
            } else {
                inputs.folded.retain(|(name, _)| *name != page.name);
            }
            bodies.insert(*format == Format::OpenMetrics, body(text));
        }
        pages.insert(page.name, bodies);
    }
    pages
}

fn body(text: String) -> Body {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    // Writing to memory cannot fail.
    let gzip = match encoder.write_all(text.as_bytes()) {
        Ok(()) => encoder.finish().unwrap_or_default(),
        Err(_) => Vec::new(),
    };
    Body {
        plain: text.into(),
        gzip: gzip.into(),
    }
}
