//! `smesh verify` of a running mesh whose database was changed by an attacker with all rights.

use std::collections::BTreeSet;

use mesh_events::EventType;
use mesh_testkit::{Postgres, fixtures, write_private};
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, SqliteConnection};

use crate::forged::signed;
use crate::mesh::{Mesh, stderr, stdout};
use crate::others::publish;

/// Entries of which a subtree is stored.
const SUBTREE_ENTRIES: u32 = 256;

/// A mesh whose ledger is on SQLite, or on PostgreSQL at this URL.
pub struct Victim {
    pub mesh: Mesh,
    pub url: Option<String>,
}

impl Victim {
    pub fn start(url: Option<String>) -> Self {
        let mut mesh = Mesh::init();
        let toml = mesh.path("mesh.toml");
        let mut text = std::fs::read_to_string(&toml).unwrap();
        text += "\n[ledger.checkpoint]\ninterval = \"1s\"\n";
        if let Some(url) = &url {
            text += &format!("[ledger.db]\nurl = {url:?}\n");
        }
        write_private(&toml, text);
        mesh.start();
        Self { mesh, url }
    }

    /// Executes statements as the owner of the tables, with no trigger in the way.
    pub async fn tamper(&self, statements: &str) {
        let Some(url) = &self.url else {
            let file = self.mesh.path("data/ledger.db");
            let url = format!("sqlite:{}", file.display());
            let mut file = SqliteConnection::connect(&url).await.unwrap();
            let triggers = "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'";
            let triggers: Vec<(String, String)> =
                sqlx::query_as(triggers).fetch_all(&mut file).await.unwrap();
            let (mut drop, mut create) = (String::new(), String::new());
            for (name, sql) in triggers {
                drop += &format!("DROP TRIGGER {name};");
                create += &format!("{sql};");
            }
            let all = format!("BEGIN IMMEDIATE;{drop}{statements};{create}COMMIT");
            let all = sqlx::raw_sql(AssertSqlSafe(all));
            all.execute(&mut file).await.unwrap();
            return;
        };
        let mut server = PgConnection::connect(url).await.unwrap();
        let statements = statements.replace("x'", "'\\x");
        let all = format!("SET session_replication_role = replica;{statements}");
        let all = sqlx::raw_sql(AssertSqlSafe(all));
        all.execute(&mut server).await.unwrap();
    }

    /// Returns the answer of `smesh verify` and its exit status.
    pub fn verify(&self, args: &[&str]) -> (Value, Option<i32>) {
        let output = self.mesh.run(&[&["verify", "--json"], args].concat());
        let answer = serde_json::from_str(&stdout(&output));
        let answer = answer.unwrap_or_else(|_| panic!("{args:?}: {}", stderr(&output)));
        (answer, output.status.code())
    }

    pub fn is_signed(&self, entries: u32) {
        self.mesh.wait_until("all entries are signed", || {
            let (answer, _) = self.verify(&[]);
            let count = answer["entries"].as_u64();
            count >= Some(entries.into()) && count == answer["signed"].as_u64()
        });
    }
}

async fn altered_subtrees_are_repaired(url: Option<String>) {
    let victim = Victim::start(url);
    for job in 1..=SUBTREE_ENTRIES {
        let event = fixtures::job_event(EventType::JobStarted, fixtures::job(job));
        publish(&victim.mesh, &event).await;
    }
    victim.is_signed(SUBTREE_ENTRIES);
    let zeros = "00".repeat(32);
    let forge = format!(
        "DELETE FROM subtrees; INSERT INTO subtrees (level, idx, hash) VALUES (8, 0, x'{zeros}')"
    );
    victim.tamper(&forge).await;
    let (found, status) = victim.verify(&[]);
    assert_eq!(
        (&found["class"], status),
        (&"subtrees".into(), Some(1)),
        "{found}"
    );
    let repaired = victim.mesh.run(&["verify", "--repair"]);
    assert!(repaired.status.success(), "{repaired:?}");
    let printed = stdout(&repaired);
    assert!(printed.contains("they were rebuilt"), "{printed}");
    assert_eq!(victim.verify(&[]).1, Some(0));
    victim.tamper(&forge).await;
    let (answer, status) = victim.verify(&["--repair"]);
    assert_eq!(
        (&answer["verified"], status),
        (&true.into(), Some(0)),
        "{answer}"
    );
    // Nothing else is repaired.
    let leaf = format!("UPDATE entries SET leaf = x'{zeros}' WHERE seq = 5");
    victim.tamper(&leaf).await;
    let (found, status) = victim.verify(&["--repair"]);
    assert_eq!(
        (&found["first_bad_sequence"], status),
        (&5.into(), Some(1)),
        "{found}"
    );
}

async fn a_deleted_checkpoint_is_found_by_the_published_ones(url: Option<String>) {
    let victim = Victim::start(url);
    for job in 1..=3 {
        signed(&victim.mesh, job).await;
    }
    victim.is_signed(3);
    let (whole, status) = victim.verify(&[]);
    assert_eq!(status, Some(0), "{whole}");
    let export = victim.mesh.run(&["ledger", "export", "-o", "export"]);
    assert!(export.status.success(), "{}", stderr(&export));
    let keys = stdout(&victim.mesh.run(&["ledger", "key", "show"]));
    let key = ["--key", keys.trim()];
    for (way, unchecked) in [
        (&["--remote"][..], 11),
        (&["--export", "export"][..], 11),
        (&["--database", "data/ledger.db"][..], 2),
    ] {
        if victim.url.is_some() && way[0] == "--database" {
            continue;
        }
        let (answer, status) = victim.verify(&[way, &key].concat());
        assert_eq!(status, Some(0), "{answer}");
        every_class_is_listed(&whole, &answer, unchecked);
    }
    // The rest is numbered again, so nothing in the database shows it.
    let delete = "DELETE FROM checkpoints WHERE number = 1;
                  UPDATE checkpoints SET number = number + 1000;
                  UPDATE checkpoints SET number = number - 1001";
    victim.tamper(delete).await;
    if victim.url.is_none() {
        let file = victim.mesh.path("data/ledger.db");
        let (alone, status) = victim.verify(&["--database", file.to_str().unwrap()]);
        assert_eq!(status, Some(0), "{alone}");
    }
    let (found, status) = victim.verify(&[]);
    let reason = found["reason"].as_str().unwrap_or_default();
    assert!(
        status == Some(1) && reason.contains("is not stored: it was deleted"),
        "{found}"
    );
    assert_eq!(found["class"], "checkpoints", "{found}");
}

/// Each class of a verification of everything is checked, or not for a reason.
fn every_class_is_listed(whole: &Value, answer: &Value, unchecked: usize) {
    let names = |answer: &Value| -> BTreeSet<String> {
        let checked = answer["checked"].as_array().unwrap().iter();
        let checked = checked.map(|name| name.as_str().unwrap().to_owned());
        let unchecked = answer["unchecked"].as_object().unwrap().keys().cloned();
        let names = checked.chain(unchecked);
        // An export has no head, its checkpoint has one.
        names
            .map(|name| name.replace("chain and checkpoint", "chain and head"))
            .collect()
    };
    assert_eq!(names(whole), names(answer), "{answer}");
    let reasons = answer["unchecked"].as_object().unwrap();
    assert_eq!(reasons.len(), unchecked, "{answer}");
    assert!(reasons.contains_key("published checkpoints"), "{answer}");
    let is_listed = |why: &Value| why.as_str().is_some_and(|why| why.len() > 5);
    assert!(reasons.values().all(is_listed), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn altered_subtrees_are_repaired_on_sqlite() {
    altered_subtrees_are_repaired(None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn altered_subtrees_are_repaired_on_postgres() {
    let url = Postgres::shared().await.create_database();
    altered_subtrees_are_repaired(Some(url)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_checkpoint_is_found_by_the_published_ones_on_sqlite() {
    a_deleted_checkpoint_is_found_by_the_published_ones(None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_checkpoint_is_found_by_the_published_ones_on_postgres() {
    let url = Postgres::shared().await.create_database();
    a_deleted_checkpoint_is_found_by_the_published_ones(Some(url)).await;
}
