//! Checks `docs/reference/vectors.json` against this code and against an independent program.

use std::path::{Path, PathBuf};
use std::process::Command;

use ledger::domain::checkpoint::Checkpoint;
use ledger::domain::export::{ExportVerifier, HexHash};
use ledger::domain::note::{PrivateKey, PublicKey};
use ledger_format::chain::{self, GENESIS, Hash};
use ledger_format::merkle::{Frontier, verify_consistency, verify_inclusion};
use mesh_events::cloudevents::{self, Attributes};
use mesh_events::{Event, EventId, EventType, RunKey, Slot, subject};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Vectors {
    run_keys: Vec<RunKeyVector>,
    no_run_keys: Vec<String>,
    recorded: Vec<RecordedEvent>,
    sampled: Vec<Sampled>,
    derived: Vec<Derived>,
    tokens: Vec<Token>,
    no_tokens: Vec<String>,
    events: Vec<EventVector>,
    ledger: Vec<Entry>,
    tree: Tree,
    checkpoints: Vec<CheckpointVector>,
    exports: Vec<ExportVector>,
}

#[derive(Deserialize)]
struct Tree {
    leaves: Vec<HexHash>,
    roots: Vec<HexHash>,
    edges: Vec<Vec<HexHash>>,
    inclusion: Vec<InclusionVector>,
    consistency: Vec<ConsistencyVector>,
}

#[derive(Deserialize)]
struct InclusionVector {
    index: u64,
    size: u64,
    path: Vec<HexHash>,
}

#[derive(Deserialize)]
struct ConsistencyVector {
    from: u64,
    to: u64,
    path: Vec<HexHash>,
}

#[derive(Deserialize)]
struct CheckpointVector {
    origin: String,
    seeds: Vec<HexHash>,
    vkeys: Vec<String>,
    size: u64,
    root: HexHash,
    note: String,
}

#[derive(Deserialize)]
struct ExportVector {
    vkeys: Vec<String>,
    size: u64,
    lines: Vec<String>,
}

#[derive(Deserialize)]
struct RunKeyVector {
    run: Run,
    key: String,
}

#[derive(Deserialize)]
struct Run {
    cluster: String,
    job_id: u32,
    task_id: Option<u32>,
    submit_time: i64,
    attempt: u32,
}

impl From<Run> for RunKey {
    fn from(run: Run) -> Self {
        Self {
            cluster: run.cluster,
            job_id: run.job_id,
            task_id: run.task_id,
            submit_time: run.submit_time,
            attempt: run.attempt,
        }
    }
}

#[derive(Deserialize)]
struct RecordedEvent {
    run: Run,
    slot: String,
    id: String,
}

#[derive(Deserialize)]
struct Sampled {
    cluster: String,
    entity: String,
    r#type: String,
    n: u64,
    id: String,
}

#[derive(Deserialize)]
struct Derived {
    cause: String,
    r#type: String,
    n: u64,
    id: String,
}

#[derive(Deserialize)]
struct Token {
    name: String,
    token: String,
}

#[derive(Deserialize)]
struct EventVector {
    event: Value,
    subject: String,
    attributes: Value,
    headers: Value,
}

#[derive(Deserialize)]
struct Entry {
    cluster: String,
    seq: u64,
    id: String,
    subject: String,
    body: String,
    leaf: String,
    chain: String,
}

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn vectors() -> Vectors {
    let text = std::fs::read_to_string(project().join("docs/reference/vectors.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn slot(text: &str) -> Slot {
    let (event_name, at) = text.split_once('@').map_or((text, 0), |(event_name, at)| {
        (event_name, at.parse().unwrap())
    });
    match event_name {
        "baseline" => Slot::Baseline,
        "submitted" => Slot::Submitted,
        "started" => Slot::Started,
        "end" => Slot::End,
        "suspended" => Slot::Suspended(at),
        "resumed" => Slot::Resumed(at),
        "resized" => Slot::Resized(at),
        "tasks-cancelled" => Slot::TasksCancelled(at),
        "updated" => Slot::Updated,
        "cost.estimated" => Slot::CostEstimated,
        "cost.finalized" => Slot::CostFinalized,
        other => panic!("unknown slot {other}"),
    }
}

fn kind(text: &str) -> EventType {
    text.parse().unwrap()
}

#[test]
fn run_keys_are_as_specified() {
    let vectors = vectors();
    assert!(!vectors.run_keys.is_empty() && !vectors.no_run_keys.is_empty());
    for vector in vectors.run_keys {
        let run = RunKey::from(vector.run);
        assert_eq!(run.entity_key(), vector.key);
        assert_eq!(RunKey::parse(&run.cluster, &vector.key), Ok(run));
    }
    for text in vectors.no_run_keys {
        assert!(RunKey::parse("c", &text).is_err(), "{text:?}");
    }
}

#[test]
fn ids_are_as_specified() {
    let vectors = vectors();
    assert!(
        vectors.recorded.len() > 10 && !vectors.sampled.is_empty() && !vectors.derived.is_empty()
    );
    for vector in vectors.recorded {
        let id = EventId::recorded(&vector.run.into(), slot(&vector.slot));
        assert_eq!(id.to_string(), vector.id, "{}", vector.slot);
    }
    for vector in vectors.sampled {
        let id = EventId::sampled(
            &vector.cluster,
            &vector.entity,
            kind(&vector.r#type),
            vector.n,
        );
        assert_eq!(id.to_string(), vector.id);
    }
    for vector in vectors.derived {
        let id = EventId::derived(
            vector.cause.parse().unwrap(),
            kind(&vector.r#type),
            vector.n,
        );
        assert_eq!(id.to_string(), vector.id);
    }
}

#[test]
fn tokens_are_as_specified() {
    let vectors = vectors();
    assert!(!vectors.tokens.is_empty() && !vectors.no_tokens.is_empty());
    for vector in vectors.tokens {
        assert_eq!(subject::token(&vector.name), vector.token);
        assert_eq!(subject::name(&vector.token), Ok(vector.name));
    }
    for text in vectors.no_tokens {
        assert!(subject::name(&text).is_err(), "{text:?}");
    }
}

#[test]
fn subjects_and_cloudevents_are_as_specified() {
    let vectors = vectors();
    assert!(!vectors.events.is_empty());
    for vector in vectors.events {
        let event: Event = serde_json::from_value(vector.event.clone()).unwrap();
        assert_eq!(subject::of(&event).unwrap(), vector.subject);
        let attributes = Attributes::of(&event).unwrap();
        let headers: serde_json::Map<_, _> = attributes
            .headers()
            .into_iter()
            .map(|(name, value)| (name.to_owned(), Value::from(value)))
            .collect();
        assert_eq!(Value::from(headers), vector.headers);
        let json = cloudevents::to_json(&event).unwrap();
        assert_eq!(json["data"], vector.event);
        for (name, value) in vector.attributes.as_object().unwrap() {
            assert_eq!(&json[name], value, "{name}");
        }
        assert_eq!(cloudevents::from_json(&json).unwrap(), event);
    }
}

#[test]
fn ledger_hashes_are_as_specified() {
    let vectors = vectors();
    assert!(!vectors.ledger.is_empty());
    let mut before = GENESIS;
    for vector in vectors.ledger {
        let leaf = chain::Entry {
            cluster: &vector.cluster,
            seq: vector.seq,
            id: &vector.id,
            subject: &vector.subject,
            body: &hex::decode(&vector.body).unwrap(),
        }
        .leaf();
        before = chain::chain_hash(&before, &leaf);
        assert_eq!(hex::encode(leaf), vector.leaf);
        assert_eq!(hex::encode(before), vector.chain);
    }
}

fn plain(hashes: &[HexHash]) -> Vec<Hash> {
    hashes.iter().map(|hash| hash.0).collect()
}

#[test]
fn trees_and_proofs_are_as_specified() {
    let tree = vectors().tree;
    let leaves = plain(&tree.leaves);
    let mut frontier = Frontier::default();
    for (size, root) in tree.roots.iter().enumerate() {
        assert_eq!(frontier.root(), root.0, "{size}");
        assert_eq!(frontier.peaks(), plain(&tree.edges[size]), "{size}");
        if let Some(leaf) = leaves.get(size) {
            frontier.push(*leaf);
        }
    }
    let root = |size: u64| &tree.roots[size as usize].0;
    assert!(!tree.inclusion.is_empty() && !tree.consistency.is_empty());
    for InclusionVector { index, size, path } in &tree.inclusion {
        let leaf = &leaves[*index as usize];
        let path = plain(path);
        assert!(verify_inclusion(leaf, *index, *size, &path, root(*size)));
    }
    for ConsistencyVector { from, to, path } in &tree.consistency {
        let path = plain(path);
        assert!(verify_consistency(
            *from,
            root(*from),
            *to,
            root(*to),
            &path
        ));
    }
}

#[test]
fn checkpoints_are_as_specified() {
    let vectors = vectors().checkpoints;
    assert!(!vectors.is_empty());
    for vector in vectors {
        let checkpoint = Checkpoint {
            origin: vector.origin.clone(),
            size: vector.size,
            root: vector.root.0,
        };
        let private = |seed: &HexHash| PrivateKey::new(&vector.origin, &seed.0).unwrap();
        let keys: Vec<PrivateKey> = vector.seeds.iter().map(private).collect();
        let vkeys: Vec<String> = keys.iter().map(|key| key.public().to_string()).collect();
        assert_eq!(vkeys, vector.vkeys);
        let note = checkpoint.sign(&Vec::from_iter(&keys)).unwrap();
        assert_eq!(note, vector.note);
    }
}

#[test]
fn exports_are_as_specified() {
    let vectors = vectors().exports;
    assert!(!vectors.is_empty());
    for vector in vectors {
        let keys: Vec<PublicKey> = vector
            .vkeys
            .iter()
            .map(|key| key.parse().unwrap())
            .collect();
        let (first, lines) = vector.lines.split_first().unwrap();
        let mut verifier = ExportVerifier::new(first.as_bytes(), &keys, &[]).unwrap();
        for line in lines {
            verifier.next(line.as_bytes()).unwrap();
        }
        assert_eq!(verifier.finish().unwrap().signed, vector.size);
    }
}

fn check(vectors: &Path) -> (bool, String) {
    let output = Command::new("python3")
        .arg(project().join("tests/vectors/check.py"))
        .arg(vectors)
        .output()
        .expect("python3 is needed for this test: apt-get install python3");
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text)
}

#[test]
fn a_program_that_shares_no_code_computes_the_same() {
    let (agrees, output) = check(&project().join("docs/reference/vectors.json"));
    assert!(agrees, "{output}");
    assert!(output.contains(" 0 different"), "{output}");
}

#[test]
fn that_program_sees_a_difference() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vectors.json");
    let mut vectors: Value = serde_json::from_str(
        &std::fs::read_to_string(project().join("docs/reference/vectors.json")).unwrap(),
    )
    .unwrap();
    vectors["ledger"][1]["subject"] = Value::from("slurm.other");
    std::fs::write(&path, vectors.to_string()).unwrap();
    let (agrees, output) = check(&path);
    assert!(!agrees && output.contains("leaf 2:"), "{output}");
}
