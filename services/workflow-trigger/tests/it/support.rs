//! A workflow-trigger per test, the events that it reads, and its API.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use chrono::{TimeDelta, Utc};
use mesh_bus::Bus;
use mesh_events::catalogue::MESH_AUDIT;
use mesh_events::proto::mesh::audit::v1::audit_entry::Act;
use mesh_events::proto::mesh::audit::v1::{AuditEntry, TriggerActed};
use mesh_events::proto::mesh::event::v1::Owner;
use mesh_events::{Event, EventType, timestamp};
use mesh_runtime::api::{Caller, Role};
use mesh_testkit::fixtures::{CLUSTER, ended, job, job_event};
use mesh_testkit::service::TestService;
pub use mesh_testkit::service::{admin_bus as bus, publish};
use mesh_testkit::{NatsServer, wait_for};
use prost::Message as _;
use serde_json::{Value, json};
use tempfile::TempDir;
use tower::ServiceExt as _;
use workflow_trigger::WorkflowTriggerService;

pub const DEADLINE: Duration = Duration::from_secs(120);

/// Runs a test on SQLite and on PostgreSQL.
macro_rules! on_both {
    ($($name:ident),+ $(,)?) => {$(
        mod $name {
            #[tokio::test(flavor = "multi_thread")]
            async fn on_sqlite() {
                super::$name(crate::support::Site::new("")).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn on_postgres() {
                let url = mesh_testkit::Postgres::shared().await.create_database();
                super::$name(crate::support::Site::new(&url)).await;
            }
        }
    )+};
}
pub(crate) use on_both;

/// A folder with the configuration, scripts and, later, a database.
pub struct Site {
    folder: TempDir,
    database_url: String,
}

/// A running workflow-trigger.
pub struct Trigger(TestService);

impl Site {
    /// With a database of this address. Empty: a file in the folder.
    pub fn new(database_url: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("triggers.d")).unwrap();
        let site = Self {
            folder,
            database_url: database_url.to_owned(),
        };
        site.script("true.sh", "true");
        site
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Address of the database.
    pub fn database(&self) -> String {
        match self.database_url.as_str() {
            "" => "sqlite:workflow-trigger.db".to_owned(),
            url => url.to_owned(),
        }
    }

    pub fn script(&self, name: &str, text: &str) {
        let path = self.path("triggers.d").join(name);
        std::fs::write(path, format!("#!/bin/bash\n{text}\n")).unwrap();
    }

    /// Writes `mesh.toml`: `keys` of the section, then rules and further tables.
    pub fn configure(&self, nats: &NatsServer, keys: &str, tables: &str) -> PathBuf {
        let path = self.path("mesh.toml");
        let text = format!(
            "[mesh]\ncluster = \"{CLUSTER}\"\ndata_dir = {:?}\n[mesh.nats]\nurl = \"{}\"\n[workflow-trigger]\n{keys}\n{tables}\n[workflow-trigger.db]\nurl = {:?}\n",
            self.folder.path(),
            nats.url(),
            self.database_url
        );
        mesh_testkit::write_private(&path, text);
        path
    }

    pub async fn start(&self, nats: &NatsServer, keys: &str, tables: &str) -> Trigger {
        let path = self.configure(nats, keys, tables);
        let started = TestService::start::<WorkflowTriggerService>(&path).await;
        Trigger(started.unwrap())
    }
}

impl Trigger {
    /// Asks the API.
    pub async fn ask(
        &self,
        caller: Caller,
        method: &str,
        path: &str,
        body: Option<Value>,
    ) -> (StatusCode, Value) {
        self.0.ask(caller, method, path, body.as_ref()).await
    }

    /// Publishes an event, and returns status, `Retry-After` and body.
    pub async fn publish(&self, caller: Caller, event: &Value) -> (StatusCode, u64, String) {
        let request = Request::post("/v1/in").header("content-type", "application/json");
        let mut request = request.body(Body::from(event.to_string())).unwrap();
        request.extensions_mut().insert(caller);
        let answer = self.0.router.clone().oneshot(request).await.unwrap();
        let status = answer.status();
        let after = answer.headers().get("retry-after");
        let after = after.map_or(0, |after| after.to_str().unwrap().parse().unwrap());
        let body = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        (status, after, String::from_utf8(body.to_vec()).unwrap())
    }

    /// What is reported beside readiness.
    pub fn notes(&self) -> String {
        format!("{:?}", self.0.health.notes())
    }

    /// Sends a request of a source: without a caller. Returns the status and the ids of its events.
    pub async fn send(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> (StatusCode, Value) {
        self.send_as("POST", path, headers, body).await
    }

    /// Sends a request without a caller.
    pub async fn send_as(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> (StatusCode, Value) {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(body.into()).unwrap();
        let answer = self.0.router.clone().oneshot(request).await.unwrap();
        let status = answer.status();
        let body = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        (status, body)
    }

    /// Fires a rule of alice as her, and returns the key of the run.
    pub async fn fire(&self, rule: &str, id: &str, data: Value) -> String {
        let path = format!("/v1/triggers/alice/{rule}/fire");
        let body = json!({"id": id, "data": data});
        let (status, body) = self.ask(alice(), "POST", &path, Some(body)).await;
        assert!(status.is_success(), "{status}: {body}");
        body["key"].as_str().unwrap().to_owned()
    }

    /// Runs that an administrator sees, the newest first.
    pub async fn runs(&self, query: &str) -> Vec<Value> {
        let path = format!("/v1/trigger-runs?limit=1000&{query}");
        let (status, body) = self.ask(admin(), "GET", &path, None).await;
        assert_eq!(status, StatusCode::OK, "{body}");
        body["runs"].as_array().unwrap().clone()
    }

    /// Waits until the run of an event or key has a state.
    pub async fn wait_run(&self, id: &str, state: &str) -> Value {
        let description = format!("run of {id} is {state}");
        wait_for(&description, DEADLINE, async || {
            let runs = self.runs("").await;
            runs.into_iter()
                .find(|run| (run["event_id"] == id || run["key"] == id) && run["state"] == state)
        })
        .await
    }

    /// Serves the API over TCP for one caller, as the runtime does after authentication. Returns its address.
    pub async fn serve(&self, caller: Caller) -> String {
        let routes = self.0.router.clone().layer(Extension(caller));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, routes).await });
        format!("http://{address}")
    }

    /// Paths of its routes.
    pub fn routes(&self) -> BTreeSet<String> {
        let debug_text = format!("{:?}", self.0.router);
        let texts = debug_text.split('"').filter(|text| text.starts_with("/v1"));
        texts.map(str::to_owned).collect()
    }

    pub async fn stop(self) {
        self.0.stop().await;
    }

    /// Ends abruptly, as after SIGKILL.
    pub async fn kill(self) {
        self.0.kill().await;
    }
}

/// Waits until a run is as described.
pub async fn wait_until_run(trigger: &Trigger, key: &str, is_so: impl Fn(&Value) -> bool) {
    mesh_testkit::wait_until("the run is as described", DEADLINE, async || {
        let runs = trigger.runs("").await;
        runs.iter().any(|run| run["key"] == key && is_so(run))
    })
    .await;
}

/// What the audit has of an event's runs, in order.
pub async fn audit(bus: &Bus, event_id: &str) -> Vec<TriggerActed> {
    let subject = "mesh.*.audit.trigger".to_owned();
    let mut stored = bus.stored_messages(MESH_AUDIT, subject);
    let mut found = Vec::new();
    loop {
        let messages = stored.next().await.unwrap();
        if messages.is_empty() {
            return found;
        }
        for message in messages {
            match AuditEntry::decode(&*message.body).unwrap().act {
                Some(Act::Trigger(act)) if act.event_id == event_id => found.push(act),
                _ => {}
            }
        }
    }
}

pub fn alice() -> Caller {
    Caller::peer("alice", 20_001, Role::User)
}

pub fn admin() -> Caller {
    Caller::peer("root", 0, Role::Admin)
}

/// The end of a job of `user`, `age` ago.
pub fn end(kind: EventType, job_id: u32, user: &str, age: TimeDelta) -> Event {
    let mut of = ended(job(job_id), "COMPLETED", 60);
    of.end_time = Some(timestamp(Utc::now() - age));
    let mut event = job_event(kind, of);
    event.owner = Some(Owner {
        user: user.to_owned(),
        account: "physics".to_owned(),
        ..Owner::default()
    });
    event
}

/// A configuration of `trigger-submitter` for alice and bob, and the table that names it. Without Slurm.
pub fn submitter_of_users(site: &Site) -> String {
    let config = site.path("trigger-submitter.toml");
    std::fs::write(&config, "users = [\"alice\", \"bob\"]\n").unwrap();
    let program_dir = Path::new(env!("CARGO_BIN_EXE_workflow-trigger"))
        .parent()
        .unwrap();
    format!(
        "[workflow-trigger.submitter]\nprogram_dir = {program_dir:?}\nprogram_config = {config:?}\n"
    )
}

/// A rule of alice that submits `true.sh` when a job completes.
pub fn rule(name: &str, more: &str) -> String {
    format!(
        "[[workflow-trigger.rules]]\nname = {name:?}\nowner = \"alice\"\n{more}\n[workflow-trigger.rules.on]\ntypes = [\"job.completed\"]\n[workflow-trigger.rules.action]\nsubmit = \"true.sh\"\n"
    )
}
