//! Resolves Unix users to identities, with the source of each.
//!
//! Sources in order of precedence; the first one that knows a user wins:
//!
//! 1. [`IdentityMap`], the file that the operator of the mesh writes;
//! 2. [`Getent`], the system's user database, which may be LDAP;
//! 3. [`Comments`] of Slurm's associations, which account coordinators may write, too.
//!
//! [`IdentityResolver::get`] never waits: an unknown user is looked up later, and resolves then.

mod actors;
mod comment;
mod config;
mod getent;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mesh_events::proto::mesh::event::v1::Identity;
use mesh_runtime::ReloadTimer;
use mesh_runtime::identity::IdentityMap;
pub use mesh_runtime::identity::UserIdentity;
use slurm_client::AssociationRecord;
use tokio_util::sync::CancellationToken;

pub use self::actors::Actors;
use self::comment::Comments;
pub use self::config::Config;
use self::getent::Getent;

/// A source has not answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotKnown;

/// All configured sources.
#[derive(Debug)]
pub struct IdentityResolver {
    file: Arc<IdentityMap>,
    getent: Option<Getent>,
    comments: Option<Comments>,
    actors: Actors,
}

impl IdentityResolver {
    /// Creates the configured sources. Without any, no user resolves.
    pub fn new(map_file: Option<PathBuf>, config: &Config) -> Self {
        Self {
            file: Arc::new(IdentityMap::new(map_file)),
            getent: Getent::new(config),
            comments: Comments::new(config),
            actors: Actors::default(),
        }
    }

    /// Returns the resolver of actors on other users' jobs.
    pub const fn actors(&self) -> &Actors {
        &self.actors
    }

    /// Returns the identity of a user, in its form in events.
    pub fn get(&self, user: &str) -> Option<Identity> {
        self.person(user).map(|person| person.to_identity())
    }

    /// Returns the identity of a user.
    pub fn person(&self, user: &str) -> Option<UserIdentity> {
        let from_getent = || self.getent.as_ref().and_then(|getent| getent.get(user));
        let commented = || {
            self.comments
                .as_ref()
                .and_then(|comments| comments.get(user))
        };
        self.file.get(user).or_else(from_getent).or_else(commented)
    }

    /// Returns the identity of a user, for callers that must distinguish an unknown user from one not looked up yet.
    ///
    /// # Errors
    /// [`NotKnown`] if a source that counts has not answered yet.
    pub fn ask(&self, user: &str) -> Result<Option<UserIdentity>, NotKnown> {
        self.first_match(user, Getent::ask)
    }

    /// Like [`IdentityResolver::ask`], without requesting a lookup.
    ///
    /// # Errors
    /// As [`IdentityResolver::ask`].
    pub fn peek(&self, user: &str) -> Result<Option<UserIdentity>, NotKnown> {
        self.first_match(user, Getent::peek)
    }

    fn first_match(
        &self,
        user: &str,
        look_up: impl Fn(&Getent, &str) -> Result<Option<UserIdentity>, NotKnown>,
    ) -> Result<Option<UserIdentity>, NotKnown> {
        if let Some(person) = self.file.get(user) {
            return Ok(Some(person));
        }
        if !self.file.was_read() {
            return Err(NotKnown);
        }
        if let Some(getent) = &self.getent
            && let Some(person) = look_up(getent, user)?
        {
            return Ok(Some(person));
        }
        match &self.comments {
            Some(comments) => comments.ask(user),
            None => Ok(None),
        }
    }

    /// Returns all users that any source knows.
    pub fn users(&self) -> BTreeSet<String> {
        let mut users: BTreeSet<String> = self.file.users().into_iter().collect();
        users.extend(self.getent.iter().flat_map(Getent::users));
        users.extend(self.comments.iter().flat_map(Comments::users));
        users
    }

    /// Whether comments of associations are a source.
    pub const fn uses_comments(&self) -> bool {
        self.comments.is_some()
    }

    /// Reads the comments of associations from accounting's answer.
    pub fn take_comments(&self, associations: &[AssociationRecord]) {
        if let Some(comments) = &self.comments {
            comments.take(associations);
        }
    }

    /// Reloads the identity map if it has changed, and makes some of the lookups that are due.
    pub async fn refresh(&self) {
        let file = Arc::clone(&self.file);
        if let Err(error) = tokio::task::spawn_blocking(move || file.reload()).await {
            tracing::warn!(%error, "identity map reload failed");
        }
        if let Some(getent) = &self.getent {
            getent.refresh().await;
        }
    }

    /// Refreshes the sources until shutdown.
    pub async fn reload_periodically(&self, every: Duration, shutdown: CancellationToken) {
        let mut timer = ReloadTimer::every(every, shutdown.clone());
        while timer.due().await {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = self.refresh() => {}
            }
        }
    }

    /// Whether every requested lookup was tried at least once.
    pub fn settled(&self) -> bool {
        self.getent.as_ref().is_none_or(Getent::settled)
    }
}
