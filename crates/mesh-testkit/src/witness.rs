//! A witness that cosigns checkpoints over HTTP, by the C2SP specification.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signer as _, SigningKey};
use sha2::{Digest as _, Sha256};
use signed_note::{Note, StandardVerifier, VerifierList};
use tlog_tiles::{Hash, check_tree};

/// The last checkpoint signed for each origin.
type SignedCheckpoint = HashMap<String, (u64, Hash)>;

/// Sizes and roots, the next first.
type Meanwhile = VecDeque<(u64, [u8; 32])>;

/// A witness of logs. It shares no code with the ledger: `tlog_tiles` verifies proofs, `signed_note` the log's signatures.
#[derive(Clone)]
pub struct WitnessServer {
    name: &'static str,
    secret: SigningKey,
    log: Arc<Mutex<String>>,
    signed: Arc<Mutex<SignedCheckpoint>>,
    meanwhile: Arc<Mutex<Meanwhile>>,
}

impl WitnessServer {
    /// Starts a witness with this name and a key made from the seed. It trusts no log yet. Returns its address as well.
    ///
    /// # Panics
    /// If it cannot listen.
    pub async fn start(name: &'static str, seed: u8) -> (Self, String) {
        let served = Self {
            name,
            secret: SigningKey::from_bytes(&[seed; 32]),
            log: Arc::default(),
            signed: Arc::default(),
            meanwhile: Arc::default(),
        };
        let routes = Router::new()
            .route("/w/add-checkpoint", post(add_checkpoint))
            .with_state(served.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/w/", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        (served, url)
    }

    /// Makes it cosign this log's checkpoints, and no other's.
    ///
    /// # Panics
    /// Never: no holder of the lock panics.
    pub fn know(&self, log: &str) {
        log.clone_into(&mut self.log.lock().unwrap());
    }

    /// Makes it cosign one of these checkpoints for another replica after each answer 409, the first one after the first.
    ///
    /// # Panics
    /// Never: no holder of the lock panics.
    pub fn cosign_meanwhile(&self, checkpoints: impl IntoIterator<Item = (u64, [u8; 32])>) {
        self.meanwhile.lock().unwrap().extend(checkpoints);
    }

    fn id(&self) -> [u8; 4] {
        let mut hash = Sha256::new();
        hash.update(format!("{}\n\u{4}", self.name));
        hash.update(self.secret.verifying_key().as_bytes());
        hash.finalize()[..4].try_into().unwrap()
    }

    /// Its public key, as `signed-note` has it.
    pub fn vkey(&self) -> String {
        let key = [&[4], self.secret.verifying_key().as_bytes().as_slice()].concat();
        format!(
            "{}+{}+{}",
            self.name,
            hex::encode(self.id()),
            STANDARD.encode(key)
        )
    }

    fn cosign(&self, text: &str) -> String {
        let time = 1_764_000_000u64;
        let signed = self
            .secret
            .sign(format!("cosignature/v1\ntime {time}\n{text}").as_bytes());
        let line = [&self.id()[..], &time.to_be_bytes(), &signed.to_bytes()].concat();
        format!("\u{2014} {} {}\n", self.name, STANDARD.encode(line))
    }
}

/// <https://c2sp.org/tlog-witness>
async fn add_checkpoint(
    State(witness): State<WitnessServer>,
    body: String,
) -> (StatusCode, String) {
    let refused = |status, why: &str| (status, format!("{why}\n"));
    let Some((head, note)) = body.split_once("\n\n") else {
        return refused(StatusCode::BAD_REQUEST, "no empty line");
    };
    let mut lines = head.lines();
    let old = lines.next().and_then(|line| line.strip_prefix("old "));
    let Some(old) = old.and_then(|old| old.parse::<u64>().ok()) else {
        return refused(StatusCode::BAD_REQUEST, "no old size");
    };
    let hash = |line: &str| Hash(STANDARD.decode(line).unwrap().try_into().unwrap());
    let proof: Vec<Hash> = lines.map(hash).collect();
    let parsed = Note::from_bytes(note.as_bytes()).unwrap();
    let log = StandardVerifier::new(&witness.log.lock().unwrap());
    let is_known = |log| {
        let logs = VerifierList::new(vec![Box::new(log)]);
        parsed.verify(&logs).is_ok()
    };
    if !log.is_ok_and(is_known) {
        return refused(StatusCode::FORBIDDEN, "not signed by a known log");
    }
    let checkpoint = tlog_tiles::Checkpoint::from_bytes(parsed.text()).unwrap();
    let (size, root) = (checkpoint.size(), *checkpoint.hash());
    let mut signed = witness.signed.lock().unwrap();
    let known = signed.get(checkpoint.origin()).copied();
    let known = known.unwrap_or((0, Hash([0; 32])));
    if old > size {
        return refused(StatusCode::BAD_REQUEST, "old is larger");
    }
    if old != known.0 {
        if let Some((size, root)) = witness.meanwhile.lock().unwrap().pop_front() {
            signed.insert(checkpoint.origin().to_owned(), (size, Hash(root)));
        }
        return refused(StatusCode::CONFLICT, &known.0.to_string());
    }
    if old == size && old > 0 && root.0 != known.1.0 {
        return refused(StatusCode::CONFLICT, &known.0.to_string());
    }
    let proven = match old {
        0 => proof.is_empty(),
        _ if old == size => proof.is_empty(),
        _ => check_tree(&proof, size, root, old, known.1).is_ok(),
    };
    if !proven {
        return refused(StatusCode::UNPROCESSABLE_ENTITY, "the proof does not hold");
    }
    signed.insert(checkpoint.origin().to_owned(), (size, root));
    let text = str::from_utf8(parsed.text()).unwrap();
    (StatusCode::OK, witness.cosign(text))
}
