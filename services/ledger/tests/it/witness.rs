//! Witnesses cosign, over HTTP and as C2SP says. The one here shares no code with the ledger: proofs are verified by `tlog_tiles`, the ledger's
//! signatures by `signed_note`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signer as _, SigningKey};
use ledger::checkpointer::Checkpointer;
use ledger::witness::{Witness, Witnesses};
use ledger::{CheckpointConfig, Error, WitnessConfig};
use ledger_format::cosignature::{WitnessKey, cosigned};
use sha2::{Digest as _, Sha256};
use signed_note::{Note, StandardVerifier, VerifierList};
use tlog_tiles::{Hash, check_tree};

use crate::proof::Ledger;
use crate::support::{Database, on_both};

on_both!(witnesses_cosign_what_continues_and_nothing_else);

/// What a witness has signed of each origin.
type SignedCheckpoint = HashMap<String, (u64, Hash)>;

#[derive(Clone)]
struct Served {
    name: &'static str,
    secret: SigningKey,
    /// The only key of the log that it knows.
    log: Arc<Mutex<String>>,
    signed: Arc<Mutex<SignedCheckpoint>>,
}

impl Served {
    async fn start(name: &'static str, seed: u8) -> (Self, String) {
        let served = Self {
            name,
            secret: SigningKey::from_bytes(&[seed; 32]),
            log: Arc::default(),
            signed: Arc::default(),
        };
        let routes = Router::new()
            .route("/w/add-checkpoint", post(add_checkpoint))
            .with_state(served.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/w/", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        (served, url)
    }

    fn id(&self) -> [u8; 4] {
        let mut hash = Sha256::new();
        hash.update(format!("{}\n\u{4}", self.name));
        hash.update(self.secret.verifying_key().as_bytes());
        hash.finalize()[..4].try_into().unwrap()
    }

    fn vkey(&self) -> String {
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
async fn add_checkpoint(State(witness): State<Served>, body: String) -> (StatusCode, String) {
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
        return refused(StatusCode::CONFLICT, &known.0.to_string());
    }
    let proven = match old {
        0 => proof.is_empty(),
        _ if old == size => proof.is_empty() && root.0 == known.1.0,
        _ => check_tree(&proof, size, root, old, known.1).is_ok(),
    };
    if !proven {
        return refused(StatusCode::UNPROCESSABLE_ENTITY, "the proof does not hold");
    }
    signed.insert(checkpoint.origin().to_owned(), (size, root));
    let text = str::from_utf8(parsed.text()).unwrap();
    (StatusCode::OK, witness.cosign(text))
}

fn witnesses(all: &[(&Served, &str)], required: usize) -> Witnesses {
    let witness = |(served, url): &(&Served, &str)| Witness {
        url: url.parse().unwrap(),
        key: served.vkey().parse().unwrap(),
    };
    Witnesses::new(all.iter().map(witness).collect(), required).unwrap()
}

async fn with(ledger: &Ledger, all: &[(&Served, &str)], required: usize) -> Checkpointer {
    let witnesses = witnesses(all, required);
    ledger.checkpointer().await.with_witnesses(Some(witnesses))
}

async fn witnesses_cosign_what_continues_and_nothing_else(database: Database) {
    mesh_runtime::install_crypto_provider();
    let mut ledger = Ledger::new(&database).await;
    let (one, first) = Served::start("witness.example/one", 1).await;
    let (two, second) = Served::start("witness.example/two", 2).await;
    ledger.append(300).await;
    // The key is made with the first checkpoint, which nobody has to cosign.
    ledger.checkpointer().await.sign_if_new().await.unwrap();
    let log = ledger.keys().await.remove(0).to_string();
    *one.log.lock().unwrap() = log.clone();
    let keys: [WitnessKey; 2] = [one.vkey().parse().unwrap(), two.vkey().parse().unwrap()];
    let by = async |ledger: &Ledger| {
        let newest = ledger.store.last_checkpoint().await.unwrap().unwrap();
        let by = cosigned(&newest.note, &keys).unwrap();
        let names: Vec<String> = by.iter().map(|key| key.name().to_owned()).collect();
        (newest.size, names)
    };

    // One knows the log, the other does not.
    let all = [(&one, first.as_str()), (&two, second.as_str())];
    ledger.append(7).await;
    let checkpointer = with(&ledger, &all, 1).await;
    checkpointer.sign_if_new().await.unwrap();
    assert_eq!(by(&ledger).await, (307, vec!["witness.example/one".into()]));
    // It is proven to continue, over the edge of what is stored, and after a restart.
    ledger.append(800).await;
    checkpointer.sign_if_new().await.unwrap();
    ledger.append(1).await;
    with(&ledger, &all, 1).await.sign_if_new().await.unwrap();
    assert_eq!(
        by(&ledger).await,
        (1108, vec!["witness.example/one".into()])
    );

    // With both required nothing is stored or published until both have signed.
    ledger.append(2).await;
    let strict = with(&ledger, &all, 2).await;
    let refused = strict.sign_if_new().await;
    let why = |refused: &Result<(), Error>| match refused {
        Err(Error::Witness(why)) => why.clone(),
        other => panic!("{other:?}"),
    };
    assert!(why(&refused).contains("1 of 2 required"), "{refused:?}");
    assert!(why(&refused).contains("two: HTTP 403"), "{refused:?}");
    assert_eq!(by(&ledger).await.0, 1108);
    *two.log.lock().unwrap() = log;
    ledger.append(1).await;
    strict.sign_if_new().await.unwrap();
    assert_eq!(
        by(&ledger).await,
        (1111, vec![keys[0].name().into(), keys[1].name().into()])
    );
    // What was signed before is read as before.
    assert_eq!(ledger.newest().await.size, 1111);

    // Another history with the same key, where nothing else is left of the first.
    ledger.set_back(&database, 1000).await;
    let client = async_nats::connect(ledger.nats.url()).await.unwrap();
    let context = async_nats::jetstream::new(client);
    let stream = context.get_stream("MESH_CHECKPOINTS").await.unwrap();
    stream.purge().await.unwrap();
    std::fs::remove_file(ledger.key_file().with_extension("key.last")).unwrap();
    ledger.append(200).await;
    let refused = with(&ledger, &all, 1).await.sign_if_new().await;
    assert!(
        why(&refused).contains("the proof does not hold"),
        "{refused:?}"
    );
}

#[test]
fn witnesses_of_the_configuration_are_checked() {
    let config = |witnesses: &[(&str, &str)], required: usize| {
        let witness = |(url, key): &(&str, &str)| WitnessConfig {
            url: (*url).to_owned(),
            key: (*key).to_owned(),
        };
        let checkpoint = CheckpointConfig {
            witnesses: witnesses.iter().map(witness).collect(),
            required_cosignatures: required,
            ..CheckpointConfig::default()
        };
        let config = ledger::Config {
            checkpoint,
            ..ledger::Config::default()
        };
        config.validate().err().unwrap_or_default().join("\n")
    };
    let key = "w+2a90c1ea+BAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    assert!(config(&[], 1).contains("more than the 0 witnesses"));
    assert!(config(&[("witness.example", key)], 0).contains("no address"));
    assert!(config(&[("ftp://witness.example", key)], 0).contains("neither http nor https"));
    assert!(config(&[("https://witness.example", key)], 0).contains("not a key"));
}
