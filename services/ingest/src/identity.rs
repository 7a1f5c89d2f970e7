//! Who the people behind Unix users are, and how we know.
//!
//! Sources in the order of precedence; the first that knows somebody counts:
//!
//! 1. [`IdentityResolver`], which the operator of the mesh writes;
//! 2. [`Getent`], the system's own user database, which may be LDAP;
//! 3. [`Comments`] of Slurm's associations, which coordinators of accounts may write, too.
//!
//! [`IdentityResolver::get`] never waits: who must be looked up is looked up later, and becomes known then.

mod actors;
mod comment;
mod config;
mod getent;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mesh_events::proto::mesh::event::v1::Identity;
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

/// The sources together.
#[derive(Debug)]
pub struct IdentityResolver {
    file: Arc<IdentityMap>,
    getent: Option<Getent>,
    comments: Option<Comments>,
    actors: Actors,
}

impl IdentityResolver {
    /// The sources that are set up; without any it knows nobody.
    pub fn new(map_file: Option<PathBuf>, config: &Config) -> Self {
        Self {
            file: Arc::new(IdentityMap::new(map_file)),
            getent: Getent::new(config),
            comments: Comments::new(config),
            actors: Actors::default(),
        }
    }

    /// Who acts on other people's jobs.
    pub const fn actors(&self) -> &Actors {
        &self.actors
    }

    /// The person behind a user, as events have it.
    pub fn get(&self, user: &str) -> Option<Identity> {
        self.person(user).map(|person| person.to_identity())
    }

    /// The person behind a user.
    pub fn person(&self, user: &str) -> Option<UserIdentity> {
        let looked_up = || self.getent.as_ref().and_then(|getent| getent.get(user));
        let commented = || {
            self.comments
                .as_ref()
                .and_then(|comments| comments.get(user))
        };
        self.file.get(user).or_else(looked_up).or_else(commented)
    }

    /// The person behind a user, for who must know the difference between nobody and not known yet.
    ///
    /// # Errors
    /// [`NotKnown`] if a source that counts has not answered yet.
    pub fn ask(&self, user: &str) -> Result<Option<UserIdentity>, NotKnown> {
        self.first_who_knows(user, Getent::ask)
    }

    /// The same without having anybody looked up.
    ///
    /// # Errors
    /// As [`IdentityResolver::ask`].
    pub fn peek(&self, user: &str) -> Result<Option<UserIdentity>, NotKnown> {
        self.first_who_knows(user, Getent::peek)
    }

    fn first_who_knows(
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

    /// Everybody a source knows.
    pub fn users(&self) -> BTreeSet<String> {
        let mut users: BTreeSet<String> = self.file.users().into_iter().collect();
        users.extend(self.getent.iter().flat_map(Getent::users));
        users.extend(self.comments.iter().flat_map(Comments::users));
        users
    }

    /// Whether comments of associations are a source.
    pub const fn wants_comments(&self) -> bool {
        self.comments.is_some()
    }

    /// Takes in what accounting has just answered.
    pub fn take_comments(&self, associations: &[AssociationRecord]) {
        if let Some(comments) = &self.comments {
            comments.take(associations);
        }
    }

    /// Reads the map again if it has changed, and looks up some of those who must be.
    pub async fn refresh(&self) {
        let file = Arc::clone(&self.file);
        if let Err(error) = tokio::task::spawn_blocking(move || file.reload()).await {
            tracing::warn!(%error, "identity map reload failed");
        }
        if let Some(getent) = &self.getent {
            getent.refresh().await;
        }
    }

    /// Keeps up with who people are, until shutdown.
    pub async fn keep_up(&self, every: Duration, shutdown: CancellationToken) {
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(every) => {}
            }
            self.refresh().await;
        }
    }

    /// Whether nobody waits for a look-up that was never tried.
    pub fn settled(&self) -> bool {
        self.getent.as_ref().is_none_or(Getent::settled)
    }
}
