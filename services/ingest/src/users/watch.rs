//! Looks at who may do what, and tells what changed.
//!
//! slurmdbd's log of changes is asked first: one cheap question, and as long as it has nothing new, nothing else is asked. Then everything
//! is read, twice: only what two readings agree on is told. A reading that fails says nothing about anybody. Nor does one in which
//! somebody is missing whom, by the log, nobody has removed, unless it stays so.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::Utc;
use mesh_bus::Bus;
use mesh_runtime::{Condition, chain};
use slurm_client::{Slurm, Transaction};
use slurm_types::UnixTime;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::access::{Access, Entity, Everybody, everybody};
use super::memory::{Known, Memory};
use super::news::{Batch, Explained, News};
use super::tell::Frame;
use crate::config::Config;
use crate::identity::{IdentityMap, Person};
use crate::sources::{SlurmSource, Weight, unless_stopped};
use crate::turns::Turns;
use crate::{Error, metrics};

/// Until the next try if two readings, which are a turn apart, did not agree.
const AGAIN: Duration = Duration::from_secs(1);
/// The log is asked from this many seconds before its newest entry that was told: sacctmgr without `-i` waits half a minute for a yes, and an
/// entry has the time of its question.
const OVERLAP: i64 = 600;
/// A reading in which somebody is missing, and the log does not say why, is believed after so many looks in a row.
const DOUBTS: u32 = 10;
/// Events per write: an outbox must fit into a value of a bucket (1 MiB), together with what is remembered.
const MOST_IN_OUTBOX: usize = 256 * 1_024;

/// Watches users.
pub struct Watcher {
    /// Accounting.
    pub slurm: Slurm,
    /// Its health.
    pub slurmdbd: Arc<SlurmSource>,
    /// Whose turn it is to ask it.
    pub turns: Arc<Turns>,
    /// The bus.
    pub bus: Bus,
    /// The cluster.
    pub cluster: String,
    /// Settings.
    pub config: Arc<Config>,
    /// Who people are.
    pub identities: Arc<IdentityMap>,
    /// Whether what is remembered can be read and written.
    pub state_health: Condition,
    /// Stop.
    pub shutdown: CancellationToken,
}

/// What one run of the watcher knows.
struct State {
    memory: Memory,
    /// When everything was read last.
    read: Option<Instant>,
    /// A reading that is doubted, and how often it was seen.
    doubted: Option<(Everybody, u32)>,
    /// The last problem that was logged, so that each is logged once.
    problem: Option<String>,
}

/// An answer, or how long to wait for the next question.
type Answer<T> = Result<T, Duration>;

impl Watcher {
    /// Watches until told to stop.
    ///
    /// # Errors
    /// If another ingest took over, or if what is stored cannot be read.
    pub async fn run(self) -> Result<(), Error> {
        match Box::pin(self.watch()).await {
            Err(error) if error.is_shutdown() => Ok(()),
            done => done,
        }
    }

    async fn watch(&self) -> Result<(), Error> {
        let (memory, outbox) = Memory::load(
            &self.bus,
            &self.cluster,
            self.state_health.clone(),
            &self.shutdown,
        )
        .await?;
        self.bus.publish_all(outbox, &self.shutdown).await?;
        let mut state = State {
            memory,
            read: None,
            doubted: None,
            problem: None,
        };
        if self.config.accounting && !self.slurm.tells_access() {
            tracing::warn!(
                source = self.slurm.source(),
                "access of users is not watched: it does not say who changed what; set [slurm] source = \"cli\" where sacctmgr is installed"
            );
        }
        let mut due = Instant::now();
        loop {
            if self.watches_access() && due <= Instant::now() {
                due = Instant::now() + self.look(&mut state).await?;
            }
            self.link(&mut state).await?;
            self.pause(self.config.identity_poll).await?;
        }
    }

    fn watches_access(&self) -> bool {
        self.config.accounting && self.slurm.tells_access()
    }

    async fn pause(&self, pause: Duration) -> Result<(), Error> {
        tokio::select! {
            () = self.shutdown.cancelled() => Err(Error::Stopped),
            () = sleep(pause) => Ok(()),
        }
    }

    /// One look. Returns how long to wait before the next one.
    async fn look(&self, state: &mut State) -> Result<Duration, Error> {
        let settings = &self.config.users;
        let log = match self.log(state).await? {
            Ok(log) => log,
            Err(pause) => return Ok(pause),
        };
        let told = &state.memory.meta.log_told;
        let is_new = log
            .as_ref()
            .is_none_or(|log| log.iter().any(|entry| !told.contains_key(&entry.id)));
        let is_due = state
            .read
            .is_none_or(|at| at.elapsed() >= settings.full_interval);
        if !is_new && !is_due {
            return Ok(settings.interval);
        }
        let first = match self.read(state).await? {
            Ok(everybody) => everybody,
            Err(pause) => return Ok(pause),
        };
        if first != state.memory.told() || !state.memory.meta.access_known {
            match self.read(state).await? {
                Ok(second) if second == first => {}
                // Somebody is at it: what it comes to will be seen.
                Ok(_) => return Ok(AGAIN),
                Err(pause) => return Ok(pause),
            }
            let later = match self.log(state).await? {
                Ok(log) => log,
                Err(pause) => return Ok(pause),
            };
            let told = &state.memory.meta.log_told;
            let [log, later] = [&log, &later].map(|log| {
                let entries = log
                    .iter()
                    .flatten()
                    .filter(|entry| !told.contains_key(&entry.id));
                entries.cloned().collect::<Vec<_>>()
            });
            let news = News::of(&state.memory, first, &log, &later);
            if state.doubts(&news) {
                return Ok(settings.interval);
            }
            self.changed(&mut state.memory, news).await?;
        }
        state.doubted = None;
        state.read = Some(Instant::now());
        self.settle(&mut state.memory, log.unwrap_or_default())
            .await?;
        Ok(settings.interval)
    }

    /// What was logged lately; nothing if who we are may not see it.
    async fn log(&self, state: &mut State) -> Result<Answer<Option<Vec<Transaction>>>, Error> {
        let _turn = unless_stopped(&self.shutdown, self.turns.next()).await?;
        let newest = match state.memory.meta.log_time {
            0 => Utc::now().timestamp(),
            time => time,
        };
        let log = self
            .slurm
            .transactions(UnixTime::from_secs(newest - OVERLAP));
        match unless_stopped(&self.shutdown, log).await? {
            Ok(log) => {
                self.slurmdbd.up(Weight::Light).await?;
                Ok(Ok(Some(log)))
            }
            Err(error) => match self.failed(state, &error).await? {
                Some(pause) => Ok(Err(pause)),
                None => Ok(Ok(None)),
            },
        }
    }

    async fn read(&self, state: &mut State) -> Result<Answer<Everybody>, Error> {
        let comments = self.identities.wants_comments();
        let _turn = unless_stopped(&self.shutdown, self.turns.next()).await?;
        let records = self.slurm.access(&self.cluster, comments);
        match unless_stopped(&self.shutdown, records).await? {
            Ok(records) => {
                self.slurmdbd.up(Weight::Light).await?;
                state.problem = None;
                self.identities.take_comments(&records.associations);
                Ok(Ok(everybody(&records)))
            }
            Err(error) => {
                let pause = self.failed(state, &error).await?;
                Ok(Err(pause.unwrap_or(self.config.users.interval)))
            }
        }
    }

    /// Returns how long to wait if slurmdbd is away. Other problems are this question's own: jobs are not concerned.
    async fn failed(
        &self,
        state: &mut State,
        error: &slurm_client::Error,
    ) -> Result<Option<Duration>, Error> {
        use slurm_client::Error as Failure;
        if let Failure::AccountingDown { .. }
        | Failure::TimedOut { .. }
        | Failure::MungeDown { .. } = error
        {
            let pause = self.slurmdbd.down(Weight::Light, error).await?;
            return Ok(Some(
                pause.max(self.config.users.interval.min(Duration::from_secs(60))),
            ));
        }
        let problem = chain(error);
        if state.problem.as_ref() != Some(&problem) {
            tracing::warn!(
                problem,
                "associations cannot be read; nothing is told about access until they can"
            );
            state.problem = Some(problem);
        }
        Ok(None)
    }

    /// Tells what changed, and remembers it.
    async fn changed(&self, memory: &mut Memory, news: News<'_>) -> Result<(), Error> {
        let News { now, changes } = news;
        let before = memory.told();
        let is_baseline = !memory.meta.access_known;
        let mut of_entity: BTreeMap<Entity, Vec<Explained<'_>>> = BTreeMap::new();
        for explained in changes {
            let entity = explained.0.entity.clone();
            of_entity.entry(entity).or_default().push(explained);
        }
        let frame = self.frame();
        let everyone: BTreeSet<&Entity> = before.keys().chain(now.keys()).collect();
        let mut batch = Batch::default();
        for entity in everyone {
            let access = now.get(entity).cloned().unwrap_or_default();
            if before.get(entity) == Some(&access) {
                continue;
            }
            let known = memory.known.entry(entity.clone()).or_default();
            known.access = access;
            for (change, by) in of_entity.remove(entity).unwrap_or_default() {
                known.seq += 1;
                batch.add(entity, frame.access(&change, by, known.seq));
            }
            batch.entities.insert(entity.clone());
            if batch.bytes > MOST_IN_OUTBOX {
                self.tell(memory, std::mem::take(&mut batch)).await?;
            }
        }
        self.tell(memory, batch).await?;
        if is_baseline {
            tracing::info!(
                known = memory.known.len(),
                "access of everybody is known; from now on changes are told"
            );
            memory.meta.access_known = true;
        }
        Ok(())
    }

    /// Remembers which entries of the log are told.
    async fn settle(&self, memory: &mut Memory, log: Vec<Transaction>) -> Result<(), Error> {
        let before = memory.meta.clone();
        let meta = &mut memory.meta;
        for entry in log {
            let time = entry.time.as_secs();
            meta.log_time = meta.log_time.max(time);
            meta.log_told.insert(entry.id, time);
        }
        let oldest = meta.log_time - OVERLAP;
        meta.log_told.retain(|_, time| *time >= oldest);
        if *meta == before && meta.access_known {
            return Ok(());
        }
        memory.write_meta().await
    }

    /// Tells whose person became known or changed.
    async fn link(&self, state: &mut State) -> Result<(), Error> {
        let memory = &mut state.memory;
        if self.watches_access() && !memory.meta.access_known {
            return Ok(());
        }
        let mut users = self.identities.users();
        let has_access = |known: &Known| known.access != Access::default();
        users.extend(
            memory
                .known
                .iter()
                .filter_map(|(entity, known)| match entity {
                    Entity::User(user) if known.person.is_some() || has_access(known) => {
                        Some(user.clone())
                    }
                    _ => None,
                }),
        );
        let found: Vec<(String, Option<Person>)> = users
            .into_iter()
            .filter_map(|user| {
                let person = self.identities.ask(&user).ok()?;
                Some((user, person))
            })
            .collect();
        let is_baseline = !memory.meta.people_known;
        if is_baseline && !self.identities.settled() {
            return Ok(());
        }
        let frame = self.frame();
        let mut batch = Batch::default();
        for (user, person) in found {
            let entity = Entity::User(user);
            let before = memory
                .known
                .get(&entity)
                .and_then(|known| known.person.clone());
            if before == person {
                continue;
            }
            let known = memory.known.entry(entity.clone()).or_default();
            known.person.clone_from(&person);
            if !is_baseline {
                known.seq += 1;
                let event =
                    frame.linked(entity.user(), before.as_ref(), person.as_ref(), known.seq);
                batch.add(&entity, event);
            }
            batch.entities.insert(entity);
            if batch.bytes > MOST_IN_OUTBOX {
                self.tell(memory, std::mem::take(&mut batch)).await?;
            }
        }
        self.tell(memory, batch).await?;
        if is_baseline {
            memory.meta.people_known = true;
            memory.write_meta().await?;
        }
        Ok(())
    }

    /// Stores, publishes, and stores again that it is published.
    async fn tell(&self, memory: &mut Memory, batch: Batch) -> Result<(), Error> {
        if batch.entities.is_empty() {
            return Ok(());
        }
        memory.write(&batch.entities, &batch.events).await?;
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
        memory.write(&batch.entities, &[]).await
    }

    fn frame(&self) -> Frame<'_> {
        let late = self.config.users.interval.saturating_mul(2) + Duration::from_secs(60);
        Frame {
            cluster: &self.cluster,
            now: Utc::now(),
            late_after: i64::try_from(late.as_secs()).unwrap_or(i64::MAX),
            identities: &self.identities,
        }
    }
}

impl State {
    /// Whether a reading is not to be believed yet.
    fn doubts(&mut self, news: &News<'_>) -> bool {
        if !news.is_doubtful() {
            return false;
        }
        let seen = match &self.doubted {
            Some((before, seen)) if *before == news.now => seen + 1,
            _ => {
                tracing::warn!(
                    "accounting shows less than before, and its log does not say why; not believed yet"
                );
                1
            }
        };
        self.doubted = Some((news.now.clone(), seen));
        seen < DOUBTS
    }
}
