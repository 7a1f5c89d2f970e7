//! Two replicas on one PostgreSQL, one of which is killed under load, again and again: each rule submits once per event, counted by what the
//! jobs wrote.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use chrono::TimeDelta;
use mesh_bus::Bus;
use mesh_db::Location;
use mesh_db::sql::Sql;
use mesh_events::EventType;
use mesh_testkit::{NatsServer, Postgres, wait_until};
use rand::RngExt as _;
use workflow_trigger::adapters::store::Store;

use crate::cluster::{Cluster, shared};
use crate::killed::{Process, chmod_all};
use crate::support::{Site, bus, end, publish};

const RULES: [&str; 2] = ["one", "two"];
/// Events before and after each kill.
const WAVE: u32 = 6;
/// Kills of a process that had claimed runs.
const MIN_HITS: u32 = 3;
const MAX_KILLS: u32 = 20;
const DEADLINE: Duration = Duration::from_secs(300);
/// Above every id of a job of the cluster: an event about a job of a rule itself would be refused.
const FIRST_EVENT: u32 = 1_000_000;

/// The database of both replicas.
struct Claims {
    store: Store,
    dead: BTreeSet<String>,
}

impl Claims {
    /// The process that lives, once it has claimed something. Only while there is one. A claim may be over before it is seen, so there are
    /// more events until one is.
    async fn living(&self, load: &mut Load<'_>) -> String {
        let sql = Sql::new("SELECT DISTINCT claimed_by FROM intents WHERE claimed_by <> ''");
        let begin = Instant::now();
        loop {
            // Before the first start there are no tables.
            let rows = self.store.database.rows("read claims", &sql).await;
            let rows = rows.unwrap_or_default();
            let names = rows.iter().map(|row| row.get("claimed_by").unwrap());
            let names: BTreeSet<String> = names.collect();
            let mut living = &names - &self.dead;
            assert!(living.len() <= 1, "{living:?}");
            if let Some(name) = living.pop_first() {
                return name;
            }
            assert!(
                begin.elapsed() < DEADLINE,
                "the living replica claims nothing"
            );
            load.publish(1).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Ends the claims of dead processes, as ten minutes would. Returns whether there were any.
    async fn end(&self) -> bool {
        let sql =
            Sql::new("UPDATE intents SET claimed_until = 1 WHERE claimed_until > 1 AND claimed_by")
                .any_of(self.dead.iter().cloned().collect::<Vec<_>>());
        let ended = self.store.database.change("end claims", sql, Vec::new());
        ended.await.unwrap()
    }
}

/// The events so far.
struct Load<'a> {
    bus: &'a Bus,
    next: u32,
}

impl Load<'_> {
    async fn publish(&mut self, count: u32) {
        for _ in 0..count {
            let event = end(
                EventType::JobCompleted,
                self.next,
                "alice",
                TimeDelta::zero(),
            );
            publish(self.bus, &event).await;
            self.next += 1;
        }
    }

    /// Names of files, one for each rule and event.
    fn files(&self) -> Vec<String> {
        let of_event = |event: u32| RULES.map(|rule| format!("{rule}-{event}"));
        (FIRST_EVENT..self.next).flat_map(of_event).collect()
    }
}

fn tables(cluster: &Cluster) -> String {
    let rule = |name: &str| {
        format!(
            "[[workflow-trigger.rules]]\nname = {name:?}\nowner = \"alice\"\n[workflow-trigger.rules.on]\ntypes = [\"job.completed\"]\n[workflow-trigger.rules.action]\nsubmit = \"count.sh\"\nmemory = \"10M\"\noutput = \"/dev/null\"\nenvironment = {{ MESH_EVENT_FILE = \"{name}-{{{{ job.job_id }}}}\" }}\n[workflow-trigger.rules.limits]\nper_hour = 1000\n"
        )
    };
    RULES.map(rule).concat() + &cluster.submitter()
}

/// Starts a replica in a folder of its own.
fn start(site: &Site, nats: &NatsServer, cluster: &Cluster, results: &Path) -> Process {
    let count = format!(
        "echo $SLURM_JOB_ID >> {}/$MESH_EVENT_FILE",
        results.display()
    );
    site.script("count.sh", &count);
    let keys = "confirm_after = \"200ms\"\nretry_initial_interval = \"100ms\"\nlimits = { per_user_hour = 1000 }";
    Process::start(site.configure(nats, keys, &tables(cluster)))
}

#[tokio::test(flavor = "multi_thread")]
async fn each_rule_submits_once_per_event_when_a_replica_is_killed() {
    let cluster = shared().await;
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let url = Postgres::shared().await.create_database();
    let sites = [Site::new(&url), Site::new(&url)];
    let results = cluster.results.join("replicas");
    std::fs::create_dir(&results).unwrap();
    chmod_all(&results);
    let location = Location::parse(&url, &sites[0].path("")).unwrap();
    let mut claims = Claims {
        store: Store::connect(&location).unwrap(),
        dead: BTreeSet::new(),
    };
    let mut load = Load {
        bus: &bus,
        next: FIRST_EVENT,
    };
    let first = start(&sites[0], &nats, cluster, &results);
    let mut victim = claims.living(&mut load).await;
    let mut replicas = [first, start(&sites[1], &nats, cluster, &results)];
    let (mut kills, mut hits) = (0, 0);
    while hits < MIN_HITS {
        assert!(
            kills < MAX_KILLS,
            "only {hits} of {kills} kills hit a claim"
        );
        load.publish(WAVE).await;
        let pause = rand::rng().random_range(50..800);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        let killed = kills as usize % 2;
        replicas[killed].kill();
        kills += 1;
        claims.dead.insert(victim);
        hits += u32::from(claims.end().await);
        // The other one goes on alone, and is the next to be killed.
        load.publish(WAVE).await;
        victim = claims.living(&mut load).await;
        replicas[killed].keep_alive();
    }
    let files = load.files();
    let runs = |file: &String| {
        let text = std::fs::read_to_string(results.join(file)).unwrap_or_default();
        text.lines().count()
    };
    wait_until("all jobs ran", DEADLINE, async || {
        // What a database has committed after the process had died.
        claims.end().await;
        files.iter().all(|file| runs(file) > 0)
    })
    .await;
    // What is still on its way would run now: everything in the queue is a held copy, or there is nothing.
    wait_until("nothing is left but held copies", DEADLINE, async || {
        let queue = cluster
            .run("root", &["squeue", "-h", "-u", "alice", "-o", "%r %k"])
            .await;
        let mut ours = queue.lines().filter(|line| line.contains("smesh:1:"));
        ours.all(|line| line.contains("JobHeldUser"))
    })
    .await;
    let counts: Vec<usize> = files.iter().map(runs).collect();
    assert!(counts.iter().all(|count| *count == 1), "{counts:?}");
    println!(
        "{} runs, {kills} kills, {hits} of a process with claims",
        files.len()
    );
}
