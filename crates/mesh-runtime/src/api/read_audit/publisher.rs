//! Publishes the audit entries of reads on MESH_AUDIT.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mesh_bus::{Bucket, Bus};
use mesh_events::catalogue::BUCKET_READS;
use mesh_events::proto::mesh::audit::v1::audit_entry::Act;
use mesh_events::proto::mesh::audit::v1::{AuditEntry, Read};
use mesh_events::{from_timestamp, subject, timestamp};
use prost::Message as _;
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::entry::ReadEntry;
use super::windows::{AuditWindows, Query, Window};
use super::{DataOfOthers, windows};
use crate::api::{AuthMethod, Caller, metrics};

/// Kind of these entries.
const KIND: &str = "read";
/// Deadline of an entry for which no response waits: that of a query at the end of its minute, and that of a stream at its end.
const END_AUDIT_TIMEOUT: Duration = Duration::from_secs(30);
/// How often entries are looked up that were not published at the end of their minute.
const LEFT_OVER_INTERVAL: Duration = Duration::from_secs(15);
/// Limit of entries in flight; others wait within the deadline.
const MAX_CONCURRENT_AUDITS: usize = 64;

/// Publishes entries for one service.
#[derive(Clone)]
pub(super) struct ReadAuditPublisher {
    bus: Bus,
    cluster: Arc<str>,
    permits: Arc<Semaphore>,
    windows: AuditWindows,
    bucket: Arc<OnceCell<Bucket>>,
    shutdown: CancellationToken,
}

impl ReadAuditPublisher {
    pub(super) fn new(bus: &Bus, cluster: &str, shutdown: &CancellationToken) -> Self {
        Self {
            bus: bus.clone(),
            cluster: cluster.into(),
            permits: Arc::new(Semaphore::new(MAX_CONCURRENT_AUDITS)),
            windows: AuditWindows::default(),
            bucket: Arc::default(),
            shutdown: shutdown.clone(),
        }
    }

    /// Records a response in the entry of its query.
    pub(super) async fn answered(
        &self,
        caller: &Caller,
        asked: String,
        filter: String,
        others: DataOfOthers,
    ) -> Result<(), mesh_bus::Error> {
        let query = Query::of(caller, asked, &filter);
        let bucket = self.bucket().await?;
        loop {
            let window = self.windows.of(&query, || {
                let none = DataOfOthers::default();
                self.read_entry(self.entry(caller, "answer", filter.clone(), none))
            });
            let counted = window.count(bucket, &query, &others).await;
            if !matches!(
                counted,
                Ok(windows::Counted::First | windows::Counted::Further)
            ) {
                self.windows.remove(&query, &window);
            }
            match counted? {
                windows::Counted::First => {
                    metrics::read("audited");
                    let reads = self.clone();
                    tokio::spawn(async move { reads.end_of_minute(&query, &window).await });
                    return Ok(());
                }
                windows::Counted::Further => {
                    metrics::read("covered");
                    return Ok(());
                }
                windows::Counted::Ended => {}
                windows::Counted::Full => {
                    let (id, mut read) = self.entry(caller, "answer", filter, others);
                    read.pages = 1;
                    self.publish((id, read)).await?;
                    metrics::read("audited");
                    return Ok(());
                }
            }
        }
    }

    /// Publishes the entry of a stream that begins. Returns its id.
    pub(super) async fn begun(
        &self,
        caller: &Caller,
        filter: String,
        others: DataOfOthers,
    ) -> Result<String, mesh_bus::Error> {
        let entry = self.entry(caller, "begin", filter, others);
        let id = entry.0.clone();
        self.publish(entry).await?;
        metrics::read("audited");
        Ok(id)
    }

    async fn bucket(&self) -> Result<&Bucket, mesh_bus::Error> {
        let open = || self.bus.bucket(BUCKET_READS);
        self.bucket.get_or_try_init(open).await
    }

    /// Publishes the entry of a query at the end of its minute, or when the service stops.
    async fn end_of_minute(&self, query: &Query, window: &Arc<Window>) {
        tokio::select! {
            () = tokio::time::sleep(windows::LENGTH) => {}
            () = self.shutdown.cancelled() => {}
        }
        self.windows.remove(query, window);
        let Some(entry) = window.end().await else {
            return;
        };
        if self.publish_end(&entry).await
            && let Ok(bucket) = self.bucket().await
        {
            window.forget(bucket).await;
        }
    }

    /// Publishes the entries that a killed process left, or that NATS did not take at the end of their minute.
    pub(super) async fn publish_left_over(self) {
        loop {
            if let Err(error) = self.publish_ended().await {
                tracing::debug!(error = crate::error_chain(&error), "look for ended reads");
            }
            tokio::select! {
                () = tokio::time::sleep(LEFT_OVER_INTERVAL) => {}
                () = self.shutdown.cancelled() => return,
            }
        }
    }

    async fn publish_ended(&self) -> Result<(), mesh_bus::Error> {
        let bucket = self.bucket().await?;
        for stored in bucket.load(&self.prefix()).await? {
            let Ok(entry) = AuditEntry::decode(stored.value) else {
                tracing::error!(key = stored.key, "an audited read cannot be decoded");
                continue;
            };
            let begun = entry.at.as_ref().and_then(from_timestamp);
            let age = begun.and_then(|begun| SystemTime::now().duration_since(begun.into()).ok());
            // Its process may still count for it. A time in the future is of a clock that was set back.
            if age.is_some_and(|age| age < windows::LENGTH + LEFT_OVER_INTERVAL) {
                continue;
            }
            self.publish_entry(&entry).await?;
            windows::remove(bucket, &stored.key, stored.revision).await;
        }
        Ok(())
    }

    /// Beginning of this service's keys.
    fn prefix(&self) -> String {
        format!("{}.{}", self.cluster, self.bus.role())
    }

    fn read_entry(&self, (id, read): (String, Read)) -> ReadEntry {
        ReadEntry {
            prefix: self.prefix(),
            entry: self.audit_entry(id, None),
            read,
        }
    }

    pub(super) fn audit_entry(&self, id: String, act: Option<Act>) -> AuditEntry {
        AuditEntry {
            id,
            cluster: self.cluster.to_string(),
            kind: KIND.to_owned(),
            at: Some(timestamp(SystemTime::now().into())),
            service: self.bus.role().to_owned(),
            act,
        }
    }

    pub(super) fn entry(
        &self,
        caller: &Caller,
        phase: &str,
        filter: String,
        others: DataOfOthers,
    ) -> (String, Read) {
        let (issuer, subject) = match &caller.auth_method {
            AuthMethod::Oidc { issuer, subject } => (issuer.clone(), subject.clone()),
            AuthMethod::Peer { .. } | AuthMethod::Token => Default::default(),
        };
        let mut read = Read {
            reader: caller.name.clone(),
            reader_users: caller.users.iter().cloned().collect(),
            issuer,
            subject,
            role: caller.role_name().to_owned(),
            authentication: caller.auth_method.as_str().to_owned(),
            request: caller.request.clone(),
            filter,
            phase: phase.to_owned(),
            ..Read::default()
        };
        others.put(&mut read);
        (uuid::Uuid::new_v4().to_string(), read)
    }

    /// Publishes an entry for which no response waits. False if NATS does not store it.
    pub(super) async fn publish_end(&self, entry: &AuditEntry) -> bool {
        match timeout(END_AUDIT_TIMEOUT, self.publish_entry(entry)).await {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => {
                tracing::warn!(
                    error = crate::error_chain(&error),
                    "end of read not audited"
                );
            }
            Err(_) => tracing::warn!("end of read not audited: NATS does not answer"),
        }
        false
    }

    async fn publish(&self, (id, read): (String, Read)) -> Result<(), mesh_bus::Error> {
        let entry = self.audit_entry(id, Some(Act::Read(read)));
        self.publish_entry(&entry).await
    }

    async fn publish_entry(&self, entry: &AuditEntry) -> Result<(), mesh_bus::Error> {
        // The semaphore is never closed.
        let _permit = self.permits.acquire().await;
        self.bus
            .publish_raw(
                subject::audit(&self.cluster, KIND),
                &entry.id,
                entry.encode_to_vec(),
            )
            .await
            .map(drop)
    }
}
