//! Changes of access with their explanation, and the events published with one write.

use std::collections::BTreeSet;

use mesh_events::Event;
use prost::Message as _;
use slurm_client::Transaction;

use super::access::{AccessByEntity, Entity};
use super::access_store::AccessStore;
use super::actor::find_transaction;
use super::diff::{Change, Kind, diff};

/// A change, and the log entry that explains it.
pub(super) type AttributedChange<'a> = (Change, Option<&'a Transaction>);

/// A reading that differs from the published state.
pub(super) struct AccessDiff<'a> {
    pub(super) now: AccessByEntity,
    pub(super) changes: Vec<AttributedChange<'a>>,
}

impl<'a> AccessDiff<'a> {
    /// Returns the changes with their explanation: from the log before the readings, else from the log after them. There are none at the
    /// first start, as existing access is not published.
    pub(super) fn of(
        access_store: &AccessStore,
        now: AccessByEntity,
        log: &'a [Transaction],
        newer: &'a [Transaction],
    ) -> Self {
        let changes = if access_store.progress.access_known {
            diff(&access_store.published(), &now)
        } else {
            Vec::new()
        };
        let explained = |change: Change| {
            let by = find_transaction(&change, log).or_else(|| find_transaction(&change, newer));
            (change, by)
        };
        Self {
            now,
            changes: changes.into_iter().map(explained).collect(),
        }
    }

    /// Returns users and accounts that are missing, or have lost a role, without a log entry. slurmdbd logs every such change.
    pub(super) fn suspected(&self) -> BTreeSet<Entity> {
        let logged = ["Account", "AdminLevel", "Coordinator"];
        let suspected = self.changes.iter().filter(|(change, by)| {
            by.is_none()
                && change.kind == Kind::Revoked
                && logged.contains(&change.attribute.as_str())
        });
        suspected.map(|(change, _)| change.entity.clone()).collect()
    }
}

/// Events published with one write.
#[derive(Default)]
pub(super) struct AccessEventBatch {
    pub(super) entities: BTreeSet<Entity>,
    pub(super) events: Vec<(Entity, Event)>,
    pub(super) bytes: usize,
}

impl AccessEventBatch {
    pub(super) fn add(&mut self, entity: &Entity, event: Event) {
        // Base64 turns 3 bytes into 4.
        self.bytes += event.encoded_len() * 4 / 3;
        self.events.push((entity.clone(), event));
    }
}
