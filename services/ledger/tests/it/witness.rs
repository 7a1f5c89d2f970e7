//! Witnesses cosign consistent checkpoints.

use ledger::checkpointer::Checkpointer;
use ledger::witness::{Growth, Witness, Witnesses};
use ledger::{CheckpointConfig, Error, WitnessConfig};
use ledger_format::cosignature::{WitnessKey, cosigned};
use mesh_testkit::WitnessServer;

use crate::proof::Ledger;
use crate::support::{Database, on_both};

on_both!(
    witnesses_cosign_only_consistent_checkpoints,
    replicas_that_are_cosigned_in_turns_do_not_contradict_each_other,
);

fn witnesses(all: &[(&WitnessServer, &str)], required: usize) -> Witnesses {
    let witness = |(served, url): &(&WitnessServer, &str)| Witness {
        url: url.parse().unwrap(),
        key: served.vkey().parse().unwrap(),
    };
    Witnesses::new(all.iter().map(witness).collect(), required).unwrap()
}

async fn with(ledger: &Ledger, all: &[(&WitnessServer, &str)], required: usize) -> Checkpointer {
    let witnesses = witnesses(all, required);
    ledger.checkpointer().await.with_witnesses(Some(witnesses))
}

async fn witnesses_cosign_only_consistent_checkpoints(database: Database) {
    mesh_runtime::install_crypto_provider();
    let mut ledger = Ledger::new(&database).await;
    let (one, first) = WitnessServer::start("witness.example/one", 1).await;
    let (two, second) = WitnessServer::start("witness.example/two", 2).await;
    ledger.append(300).await;
    // The key is created with the first checkpoint, which needs no cosignature.
    ledger.checkpointer().await.sign_if_new().await.unwrap();
    let log = ledger.keys().await.remove(0).to_string();
    one.know(&log);
    let keys: [WitnessKey; 2] = [one.vkey().parse().unwrap(), two.vkey().parse().unwrap()];
    let by = async |ledger: &Ledger| {
        let newest = ledger.store.last_checkpoint().await.unwrap().unwrap();
        let by = cosigned(&newest.note, &keys).unwrap();
        let names: Vec<String> = by.iter().map(|key| key.name().to_owned()).collect();
        (newest.size, names)
    };

    // Only one of the witnesses knows the log.
    let all = [(&one, first.as_str()), (&two, second.as_str())];
    ledger.append(7).await;
    let checkpointer = with(&ledger, &all, 1).await;
    checkpointer.sign_if_new().await.unwrap();
    assert_eq!(by(&ledger).await, (307, vec!["witness.example/one".into()]));
    // The checkpoint is proven consistent, across the edge of the stored subtrees and after a
    // restart.
    ledger.append(800).await;
    checkpointer.sign_if_new().await.unwrap();
    ledger.append(1).await;
    with(&ledger, &all, 1).await.sign_if_new().await.unwrap();
    assert_eq!(
        by(&ledger).await,
        (1108, vec!["witness.example/one".into()])
    );

    // If both are required, nothing is stored or published until both have signed.
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
    two.know(&log);
    ledger.append(1).await;
    strict.sign_if_new().await.unwrap();
    assert_eq!(
        by(&ledger).await,
        (1111, vec![keys[0].name().into(), keys[1].name().into()])
    );
    // The earlier signatures are still accepted.
    assert_eq!(ledger.newest().await.size, 1111);

    // Another history with the same key, on a host where nothing else of the first is left.
    ledger.set_back(&database, 1000).await;
    let client = async_nats::connect(ledger.nats.url()).await.unwrap();
    let context = async_nats::jetstream::new(client);
    let stream = context.get_stream("MESH_CHECKPOINTS").await.unwrap();
    stream.purge().await.unwrap();
    std::fs::remove_file(ledger.key_file().with_extension("key.last")).unwrap();
    // Its witnesses know more of it, although no cosignature is required.
    let lenient = with(&ledger, &all, 0).await;
    let inconsistent = async |checkpointer: &Checkpointer| match checkpointer.sign_if_new().await {
        Err(Error::Inconsistent(why)) => why,
        other => panic!("{other:?}"),
    };
    let why = inconsistent(&lenient).await;
    assert!(
        why.contains("has cosigned 1111 entries, more than"),
        "{why}"
    );
    // Nor is it signed once it has as many entries again.
    ledger.append(200).await;
    for checkpointer in [lenient, with(&ledger, &all, 1).await] {
        let why = inconsistent(&checkpointer).await;
        assert!(why.contains("witness.example/one has cosigned"), "{why}");
    }
}

/// Two replicas with the key sign the same size. The other one is cosigned between two requests of this one.
async fn replicas_that_are_cosigned_in_turns_do_not_contradict_each_other(database: Database) {
    mesh_runtime::install_crypto_provider();
    let mut ledger = Ledger::new(&database).await;
    let (witness, url) = WitnessServer::start("witness.example/one", 1).await;
    ledger.append(300).await;
    ledger.checkpointer().await.sign_if_new().await.unwrap();
    witness.know(&ledger.keys().await.remove(0).to_string());
    let all = [(&witness, url.as_str())];
    let cosign = async |ledger: &Ledger| {
        let newest = ledger.store.last_checkpoint().await.unwrap().unwrap();
        let growth = Growth {
            store: &ledger.store,
            size: newest.size.unsigned_abs(),
            subtrees: &[],
        };
        // Without memory of what it has cosigned, as after a restart.
        witnesses(&all, 1).cosign(&newest.note, growth).await
    };
    cosign(&ledger).await.unwrap();

    ledger.append(7).await;
    ledger.checkpointer().await.sign_if_new().await.unwrap();
    let newest = ledger.newest().await;
    witness.cosign_meanwhile([(newest.size, newest.root)]);
    let note = cosign(&ledger).await.unwrap();
    let key: WitnessKey = witness.vkey().parse().unwrap();
    assert_eq!(cosigned(&note, &[key]).unwrap().len(), 1);

    // It is cosigned again and again: an outage, and no contradiction.
    ledger.append(1).await;
    ledger.checkpointer().await.sign_if_new().await.unwrap();
    let sizes = [305, 306, 307];
    witness.cosign_meanwhile(sizes.map(|size| (size, newest.root)));
    let refused = cosign(&ledger).await;
    assert!(matches!(refused, Err(Error::Witness(_))), "{refused:?}");

    // Another root of the same size is one, also if it was cosigned meanwhile.
    let newest = ledger.newest().await;
    witness.cosign_meanwhile([(newest.size, [7; 32])]);
    let refused = cosign(&ledger).await;
    assert!(
        matches!(refused, Err(Error::Inconsistent(_))),
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
    assert!(config(&[("witness.example", key)], 0).contains("not an address"));
    assert!(config(&[("ftp://witness.example", key)], 0).contains("neither http nor https"));
    assert!(config(&[("https://witness.example", key)], 0).contains("not a key"));
}
