//! Publishes and stores what the watcher has found: changes of access, and identities.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::Utc;
use slurm_client::Transaction;

use super::AccessWatcher;
use super::access::{Access, Entity};
use super::access_changes::{AccessDiff, AccessEventBatch, AttributedChange};
use super::access_events::AccessEventContext;
use super::access_store::{AccessProgress, AccessStore};
use super::watch::LOG_OVERLAP_SECS;
use crate::identity::UserIdentity;
use crate::{Error, metrics};

/// Maximum bytes of events per write. An outbox must fit into a bucket value (1 MiB), together with the stored state.
const MAX_OUTBOX_BYTES: usize = 256 * 1_024;

impl AccessWatcher {
    /// Publishes and stores the changes.
    pub(super) async fn changed(
        &self,
        access_store: &mut AccessStore,
        access_diff: AccessDiff<'_>,
    ) -> Result<(), Error> {
        let AccessDiff { now, changes } = access_diff;
        let before = access_store.published();
        let is_baseline = !access_store.progress.access_known;
        let mut of_entity: BTreeMap<Entity, Vec<AttributedChange<'_>>> = BTreeMap::new();
        for explained in changes {
            let entity = explained.0.entity.clone();
            of_entity.entry(entity).or_default().push(explained);
        }
        let event_context = self.event_context();
        let everyone: BTreeSet<&Entity> = before.keys().chain(now.keys()).collect();
        let mut batch = AccessEventBatch::default();
        for entity in everyone {
            let access = now.get(entity).cloned().unwrap_or_default();
            if before.get(entity) == Some(&access) {
                continue;
            }
            let is_lost = access_store.has_lost(entity);
            let known = access_store.entry(entity);
            known.access = access;
            let changes = of_entity.remove(entity).unwrap_or_default();
            for (change, by) in changes.into_iter().filter(|_| !is_lost) {
                known.seq += 1;
                batch.add(entity, event_context.access(&change, by, known.seq));
            }
            batch.entities.insert(entity.clone());
            if batch.bytes > MAX_OUTBOX_BYTES {
                self.emit(access_store, std::mem::take(&mut batch)).await?;
            }
        }
        self.emit(access_store, batch).await?;
        if is_baseline {
            tracing::info!(known = access_store.known.len(), "access baseline stored");
            access_store.progress.access_known = true;
        }
        Ok(())
    }

    /// Records which log entries are published.
    pub(super) async fn settle(
        &self,
        access_store: &mut AccessStore,
        log: Vec<Transaction>,
    ) -> Result<(), Error> {
        let before = access_store.progress.clone();
        let progress = &mut access_store.progress;
        note_log(progress, &log, Utc::now().timestamp());
        if *progress == before && progress.access_known {
            return Ok(());
        }
        access_store.write_progress().await
    }

    /// Publishes users whose identity became known or changed.
    pub(super) async fn link(&self, access_store: &mut AccessStore) -> Result<(), Error> {
        if self.config.accounting && !access_store.progress.access_known {
            return Ok(());
        }
        // Users with access, or with a known identity, are looked up. For other users, only identities known from jobs and logins are
        // published.
        let mut users: BTreeMap<String, bool> = self
            .identities
            .users()
            .into_iter()
            .map(|user| (user, false))
            .collect();
        for (entity, known) in &access_store.known {
            let matters = known.access != Access::default() || known.person.is_some();
            if let Entity::User(user) = entity
                && matters
            {
                users.insert(user.clone(), true);
            }
        }
        let found: Vec<(String, Option<UserIdentity>)> = users
            .into_iter()
            .filter_map(|(user, matters)| {
                let person = match matters {
                    true => self.identities.ask(&user),
                    false => self.identities.peek(&user),
                };
                Some((user, person.ok()?))
            })
            .collect();
        let is_baseline = !access_store.progress.people_known;
        if is_baseline && !self.identities.settled() {
            return Ok(());
        }
        let event_context = self.event_context();
        let mut batch = AccessEventBatch::default();
        for (user, person) in found {
            let entity = Entity::User(user);
            let before = access_store
                .known
                .get(&entity)
                .and_then(|known| known.person.clone());
            if before == person {
                continue;
            }
            let is_lost = before.is_none() && access_store.is_in_lost_shard(&entity);
            let known = access_store.entry(&entity);
            known.person.clone_from(&person);
            if !is_baseline && !is_lost {
                known.seq += 1;
                let event = event_context.linked(
                    entity.user(),
                    before.as_ref(),
                    person.as_ref(),
                    known.seq,
                );
                batch.add(&entity, event);
            }
            batch.entities.insert(entity);
            if batch.bytes > MAX_OUTBOX_BYTES {
                self.emit(access_store, std::mem::take(&mut batch)).await?;
            }
        }
        self.emit(access_store, batch).await?;
        if is_baseline {
            access_store.progress.people_known = true;
            access_store.write_progress().await?;
        }
        Ok(())
    }

    /// Stores, publishes, and stores again that it is published.
    async fn emit(
        &self,
        access_store: &mut AccessStore,
        batch: AccessEventBatch,
    ) -> Result<(), Error> {
        if batch.entities.is_empty() {
            return Ok(());
        }
        access_store.write(&batch.entities, &batch.events).await?;
        if batch.events.is_empty() {
            return Ok(());
        }
        let traced = batch.events.iter().map(|(_, event)| {
            if let Ok(kind) = event.r#type.parse() {
                metrics::fact(kind);
            }
            let span = tracing::info_span!(parent: None, "ingest.fact", event.id = event.id, event.r#type = event.r#type, cluster = event.cluster);
            (event.clone(), span)
        });
        self.bus
            .publish_all_traced(traced.collect(), &self.shutdown)
            .await?;
        access_store.write(&batch.entities, &[]).await
    }

    fn event_context(&self) -> AccessEventContext<'_> {
        let late = self.config.users.interval.saturating_mul(2) + Duration::from_secs(60);
        AccessEventContext {
            cluster: &self.cluster,
            now: Utc::now(),
            late_after: i64::try_from(late.as_secs()).unwrap_or(i64::MAX),
            asked: match self.slurm.over_rest() {
                true => "slurmrestd",
                false => "sacctmgr",
            },
            identities: &self.identities,
        }
    }
}

/// Records which log entries are published, as long as they are still requested.
fn note_log(progress: &mut AccessProgress, log: &[Transaction], now: i64) {
    for entry in log {
        let time = entry.time.as_secs();
        progress.log_time = progress.log_time.max(time);
        progress.log_published.insert(entry.id, time);
    }
    // With a time from a clock that was ahead, later entries would be older than the requested range, and count as new at every poll.
    progress.log_time = progress.log_time.min(now);
    let oldest = progress.log_time - LOG_OVERLAP_SECS;
    progress.log_published.retain(|_, time| *time >= oldest);
}

#[cfg(test)]
mod tests {
    use slurm_types::UnixTime;

    use super::*;

    #[test]
    fn an_entry_of_a_clock_that_was_ahead_does_not_make_later_ones_new_again() {
        let entry = |id, time| Transaction {
            id,
            time: UnixTime::from_secs(time),
            action: "Add Users".to_owned(),
            actor: "root".to_owned(),
            text: String::new(),
        };
        let mut progress = AccessProgress::default();
        note_log(&mut progress, &[entry(1, 1_000_000)], 1_000_000);
        // Back by a day.
        note_log(&mut progress, &[entry(2, 913_600)], 913_600);
        assert_eq!(progress.log_time, 913_600);
        assert_eq!(progress.log_published.keys().collect::<Vec<_>>(), [&1, &2]);
    }
}
