//! Readiness: a process is ready while all conditions of its services hold. Health notes report what an operator should check although the
//! service works.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The conditions of a process. Cheap to clone.
#[derive(Clone, Default)]
pub struct Health {
    conditions: Arc<Mutex<BTreeMap<String, Option<String>>>>,
    leadership: Arc<Mutex<BTreeMap<String, &'static str>>>,
    notes: Arc<Mutex<BTreeMap<String, String>>>,
}

/// A hint for the operator that does not affect readiness.
#[derive(Clone)]
pub struct HealthNote {
    health: Health,
    name: String,
}

/// One condition of readiness, e.g. `nats`; false at first.
#[derive(Clone)]
pub struct Condition {
    health: Health,
    name: String,
}

impl Health {
    /// Adds a condition. Name it `<service>.<subject>`, e.g. `ledger.nats`.
    pub fn condition(&self, name: &str) -> Condition {
        let condition = Condition {
            health: self.clone(),
            name: name.to_owned(),
        };
        condition.fail("starting");
        condition
    }

    /// Conditions that do not hold, by name, with the reason; empty when ready.
    pub fn problems(&self) -> BTreeMap<String, String> {
        let conditions = self
            .conditions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        conditions
            .iter()
            .filter_map(|(name, reason)| Some((name.clone(), reason.clone()?)))
            .collect()
    }

    /// Leadership states of the services that elect a leader: `leader`, `standby`, … A standby is ready.
    pub fn leadership(&self) -> BTreeMap<String, &'static str> {
        self.leadership
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Adds a note, empty at first. Name it like a condition.
    pub fn note(&self, name: &str) -> HealthNote {
        HealthNote {
            health: self.clone(),
            name: name.to_owned(),
        }
    }

    /// The texts of all notes, by name, ready or not.
    pub fn notes(&self) -> BTreeMap<String, String> {
        self.notes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn set_leadership(&self, service: &str, state: &'static str) {
        self.leadership
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(service.to_owned(), state);
    }

    fn set(&self, name: &str, problem: Option<String>) {
        self.conditions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(name.to_owned(), problem);
    }
}

impl Condition {
    /// The condition holds.
    pub fn ok(&self) {
        self.health.set(&self.name, None);
    }

    /// The condition does not hold.
    pub fn fail(&self, reason: impl Display) {
        self.health.set(&self.name, Some(reason.to_string()));
    }
}

impl HealthNote {
    /// Sets the note's text, until [`Self::clear`].
    pub fn say(&self, text: impl Display) {
        let mut notes = self.lock();
        notes.insert(self.name.clone(), text.to_string());
    }

    /// Removes the note's text.
    pub fn clear(&self) {
        self.lock().remove(&self.name);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.health
            .notes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_while_every_condition_holds() {
        let health = Health::default();
        let (nats, slurm) = (health.condition("nats"), health.condition("slurm"));
        nats.ok();
        assert_eq!(health.problems().len(), 1);
        slurm.ok();
        assert!(health.problems().is_empty());
        nats.fail("gone");
        assert_eq!(health.problems()["nats"], "gone");
    }

    #[test]
    fn a_note_leaves_the_service_ready() {
        let health = Health::default();
        let note = health.note("ledger.gaps");
        assert!(health.notes().is_empty());
        note.say("a gap");
        assert_eq!(health.notes()["ledger.gaps"], "a gap");
        assert!(health.problems().is_empty());
        note.clear();
        assert!(health.notes().is_empty());
    }
}
