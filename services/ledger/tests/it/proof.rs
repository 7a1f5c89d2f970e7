//! Checkpoints, proofs, keys and exports, checked by independent implementations: `signed_note` and
//! `tlog_tiles`, ports of Go's sumdb.

use std::path::Path;
use std::sync::Arc;

use axum::Extension;
use ledger::Store;
use ledger::adapters::KeyFile;
use ledger::api::{Proofs, export_router, proof_router};
use ledger::checkpointer::Checkpointer;
use ledger::domain::checkpoint::Checkpoint;
use ledger::domain::note::PublicKey;
use mesh_api::ledger::proof_service_client::ProofServiceClient;
use mesh_events::EventType;
use mesh_events::proto::mesh::ledger::v1::{
    GetCheckpointRequest, ProveConsistencyRequest, ProveInclusionRequest,
    ReportContradictionRequest, ResumeLedgerRequest,
};
use mesh_runtime::api::Caller;
use mesh_testkit::NatsServer;
use mesh_testkit::fixtures::{self, CLUSTER};
use serde_json::Value;
use signed_note::{Note, StandardVerifier, VerifierList};
use tlog_tiles::{Hash, check_record, check_tree};

use crate::support::{Database, bus, of_user, on_both, record, user};

on_both!(proofs_hold_for_another_implementation);

pub const ORIGIN: &str = "example.org/ledger";

/// A ledger that is signed on demand, and its API.
pub struct Ledger {
    pub nats: NatsServer,
    pub store: Store,
    pub folder: tempfile::TempDir,
    next_job: u32,
}

impl Ledger {
    pub async fn new(database: &Database) -> Self {
        let nats = NatsServer::start().await;
        bus(&nats, "admin").await;
        Self {
            nats,
            store: database.store().await,
            folder: tempfile::tempdir().unwrap(),
            next_job: 1,
        }
    }

    pub async fn append(&mut self, count: u32) {
        let jobs = self.next_job..self.next_job + count;
        self.next_job += count;
        let records = jobs.map(|id| {
            record(&of_user(
                "alice",
                EventType::JobSubmitted,
                fixtures::job(id),
            ))
        });
        let records: Vec<_> = records.collect();
        for batch in records.chunks(500) {
            self.store.append("S", 1, batch.to_vec()).await.unwrap();
        }
    }

    /// Restores the state of a backup with this number of entries and their checkpoints. Removes
    /// everything later.
    pub async fn set_back(&mut self, database: &Database, seq: u64) {
        let mut outsider = database.outsider().await;
        outsider.drop_guards().await;
        for table in ["payloads", "event_nodes", "event_index", "entries"] {
            let statement = format!("DELETE FROM {table} WHERE seq > {seq}");
            outsider.execute(&statement).await;
        }
        let statement = format!("DELETE FROM checkpoints WHERE size > {seq}");
        outsider.execute(&statement).await;
        outsider.execute("DELETE FROM subtrees").await;
        let chain = format!("SELECT chain FROM entries WHERE seq = {seq}");
        let chain = hex::encode(outsider.bytes(&chain).await);
        let head = format!("UPDATE head SET seq = {seq}, chain = x'{chain}'");
        outsider.execute(&head).await;
        self.store.close().await;
        self.store = database.store().await;
    }

    pub fn key_file(&self) -> std::path::PathBuf {
        self.folder.path().join("ledger.key")
    }

    /// Returns a checkpointer as after a restart: it knows only what is stored.
    pub async fn checkpointer(&self) -> Checkpointer {
        self.checkpointer_with(&self.key_file()).await
    }

    pub async fn checkpointer_with(&self, key: &Path) -> Checkpointer {
        let bus = bus(&self.nats, "ledger").await;
        let file = KeyFile::new(key.to_owned());
        Checkpointer::new(self.store.clone(), bus, file, ORIGIN, CLUSTER)
    }

    pub async fn serve(&self, caller: Caller) -> String {
        let proofs = Arc::new(Proofs::new(self.store.clone(), self.checkpointer().await));
        let routes = proof_router(Arc::clone(&proofs)).merge(export_router(proofs));
        let routes = routes.layer(Extension(caller));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, routes).await });
        format!("http://{address}")
    }

    pub async fn keys(&self) -> Vec<PublicKey> {
        let keys = self.store.checkpoint_keys().await.unwrap();
        keys.iter().map(|key| key.vkey.parse().unwrap()).collect()
    }

    pub async fn newest(&self) -> Checkpoint {
        let stored = self.store.last_checkpoint().await.unwrap().unwrap();
        Checkpoint::open(&stored.note, &self.keys().await)
            .unwrap()
            .0
    }
}

pub async fn get(url: &str) -> (u16, String) {
    mesh_runtime::install_crypto_provider();
    let answer = reqwest::get(url).await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

pub async fn json(url: &str) -> Value {
    let (status, text) = get(url).await;
    assert_eq!(status, 200, "{url}: {text}");
    serde_json::from_str(&text).unwrap()
}

/// Returns size and root, if another implementation accepts the note as signed by this key.
pub fn their_checkpoint(note: &str, vkey: &str) -> (u64, Hash) {
    let verifier = StandardVerifier::new(vkey).unwrap();
    let note = Note::from_bytes(note.as_bytes()).unwrap();
    let verifiers = VerifierList::new(vec![Box::new(verifier)]);
    let (valid, _) = note.verify(&verifiers).unwrap();
    assert_eq!(valid.len(), 1);
    let checkpoint = tlog_tiles::Checkpoint::from_bytes(note.text()).unwrap();
    assert_eq!(checkpoint.origin(), ORIGIN);
    (checkpoint.size(), *checkpoint.hash())
}

fn hash(value: &Value) -> Hash {
    let bytes = hex::decode(value.as_str().unwrap()).unwrap();
    Hash(bytes.try_into().unwrap())
}

fn path(value: &Value) -> Vec<Hash> {
    value["path"].as_array().unwrap().iter().map(hash).collect()
}

async fn proofs_hold_for_another_implementation(database: Database) {
    let mut ledger = Ledger::new(&database).await;
    let checkpointer = ledger.checkpointer().await;
    let url = ledger.serve(user("alice")).await;
    checkpointer.sign_if_new().await.unwrap();
    let (status, _) = get(&format!("{url}/v1/ledger/checkpoint")).await;
    assert_eq!(status, 404, "an empty ledger has no checkpoint");

    let sizes = [1u64, 7, 300, 777];
    for size in sizes {
        let more = size as u32 - (ledger.next_job - 1);
        ledger.append(more).await;
        checkpointer.sign_if_new().await.unwrap();
        // Signing again without new entries has no effect.
        checkpointer.sign_if_new().await.unwrap();
    }
    let listed = json(&format!("{url}/v1/ledger/checkpoints?from=7")).await;
    let listed = listed["checkpoints"].as_array().unwrap().clone();
    let counts: Vec<_> = listed.iter().map(|c| c["size"].as_u64().unwrap()).collect();
    assert_eq!(counts, sizes[1..]);

    let keys = json(&format!("{url}/v1/ledger/keys")).await;
    let vkey = keys["keys"][0]["vkey"].as_str().unwrap().to_owned();
    let (_, newest) = get(&format!("{url}/v1/ledger/checkpoint")).await;
    let (size, root) = their_checkpoint(&newest, &vkey);
    assert_eq!(size, 777);

    for seq in [1u64, 2, 256, 257, 512, 513, 776, 777] {
        let proof = json(&format!("{url}/v1/ledger/proof/inclusion?seq={seq}")).await;
        assert_eq!(proof["checkpoint"].as_str().unwrap(), newest);
        let leaf = ledger.store.leaf(seq).await.unwrap().unwrap();
        assert_eq!(hash(&proof["leaf"]).0, leaf);
        check_record(&path(&proof), size, root, seq - 1, Hash(leaf)).unwrap();
    }
    for from in sizes {
        let proof = json(&format!("{url}/v1/ledger/proof/consistency?from={from}")).await;
        let stored = ledger.store.checkpoint_of(from).await.unwrap().unwrap();
        let (from, from_root) = their_checkpoint(&stored.note, &vkey);
        check_tree(&path(&proof), size, root, from, from_root).unwrap();
    }
    // There is also a proof between two sizes without a checkpoint.
    let proof = json(&format!("{url}/v1/ledger/proof/consistency?from=5&to=299")).await;
    assert!(proof["checkpoint"].is_null());
    check_tree(
        &path(&proof),
        299,
        hash(&proof["to_root"]),
        5,
        hash(&proof["from_root"]),
    )
    .unwrap();

    // By id, for callers who may see the event.
    let id = record(&fixtures::job_event(
        EventType::JobSubmitted,
        fixtures::job(3),
    ))
    .id;
    let by_id = format!("/v1/ledger/proof/inclusion?id={id}&size=7");
    assert_eq!(json(&format!("{url}{by_id}")).await["seq"], 3);
    let bob = ledger.serve(user("bob")).await;
    assert_eq!(get(&format!("{bob}{by_id}")).await.0, 404);

    for (query, field) in [
        ("proof/inclusion", "seq: "),
        ("proof/inclusion?seq=0", "seq: "),
        ("proof/inclusion?seq=8&size=7", "seq: 8 is not in"),
        ("proof/inclusion?seq=1&size=778", "covers size 778"),
        ("proof/inclusion?seq=x", "seq: \"x\""),
        ("proof/inclusion?seq=1&id=2", "id: "),
        ("proof/inclusion?seq=1&seq=2", "seq: given twice"),
        ("proof/inclusion?number=1", "number: unknown parameter"),
        ("proof/consistency", "from: "),
        ("proof/consistency?from=0", "from: 0"),
        ("proof/consistency?from=8&to=7", "from: 8"),
        ("proof/consistency?from=1&to=-1", "to: \"-1\""),
        ("checkpoints?limit=0", "limit: 0"),
        ("checkpoints?limit=9999999999", "limit: "),
    ] {
        let (status, text) = get(&format!("{url}/v1/ledger/{query}")).await;
        assert!(
            status == 400 && text.contains(&field.replace('"', "\\\"")),
            "{query}: {status} {text}"
        );
    }
    assert_eq!(get(&format!("{url}/v1/ledger/export")).await.0, 403);

    let mut grpc = ProofServiceClient::new(
        tonic::transport::Endpoint::from_shared(url)
            .unwrap()
            .connect()
            .await
            .unwrap(),
    );
    let checkpoint = grpc
        .get_checkpoint(GetCheckpointRequest {})
        .await
        .unwrap()
        .into_inner()
        .checkpoint
        .unwrap();
    assert_eq!((checkpoint.note, checkpoint.size), (newest, 777));
    let request = ProveInclusionRequest {
        seq: 500,
        ..Default::default()
    };
    let proof = grpc.prove_inclusion(request).await.unwrap().into_inner();
    let hashes = |path: &[Vec<u8>]| {
        path.iter()
            .map(|hash| Hash(hash.clone().try_into().unwrap()))
            .collect::<Vec<_>>()
    };
    let leaf = Hash(proof.leaf.clone().try_into().unwrap());
    check_record(&hashes(&proof.path), size, root, 499, leaf).unwrap();
    let request = ProveConsistencyRequest {
        from_size: 300,
        to_size: 0,
    };
    let proof = grpc.prove_consistency(request).await.unwrap().into_inner();
    check_tree(
        &hashes(&proof.path),
        size,
        root,
        300,
        Hash(proof.from_root.try_into().unwrap()),
    )
    .unwrap();
    let request = ProveInclusionRequest {
        seq: 9999,
        ..Default::default()
    };
    assert_eq!(
        grpc.prove_inclusion(request).await.unwrap_err().code(),
        tonic::Code::InvalidArgument
    );
    // The caller is no administrator.
    let request = ResumeLedgerRequest::default();
    assert_eq!(
        grpc.resume_ledger(request).await.unwrap_err().code(),
        tonic::Code::PermissionDenied
    );
    let request = ReportContradictionRequest {
        checkpoint: "no note".into(),
    };
    assert_eq!(
        grpc.report_contradiction(request).await.unwrap_err().code(),
        tonic::Code::InvalidArgument
    );
}
