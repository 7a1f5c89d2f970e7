//! An operator restores a backup of the whole ledger, including the key and the last note. Clients notice it, and there is a way to
//! accept it.

use serde_json::Value;

use crate::forged::{DATABASE, KEY, back_up_and_continue, copy, signed, size_of};
use crate::mesh::{Mesh, stderr, stdout};
use crate::others::with_an_event_of_alice;

/// Every command that shows what the ledger has gets the error; those that do not read it, or have to work, get their answers.
fn every_reader_refuses(mesh: &Mesh) {
    const ID: &str = "75e9d09e-b590-8c89-bd6d-e2ec838d8006";
    let readers: [&[&str]; 17] = [
        &["events"],
        &["events", "--follow"],
        &["export"],
        &["stats"],
        &["stats", "--kpi", "--by", "account"],
        &["job", "1"],
        &["node", "n1"],
        &["node", "history", "n1"],
        &["wait", "1", "end"],
        // Not in the queue, so its history is asked for.
        &["why", "1"],
        &["webhooks", "test", "pipeline", "--event", ID],
        &["triggers", "test", "alice/align", "--event", ID],
        &["replay", "start"],
        &["replay", "list"],
        &["ledger", "checkpoint"],
        &["ledger", "archives"],
        &["verify", "--remote", "--key", "keys"],
    ];
    let others: [&[&str]; 2] = [&["whoami"], &["webhooks", "list"]];
    std::thread::scope(|scope| {
        for command in readers {
            scope.spawn(move || {
                let refused = mesh.run(command);
                let said = stderr(&refused) + &stdout(&refused);
                assert_eq!(refused.status.code(), Some(1), "{command:?}: {said}");
                assert!(
                    said.contains("contradicts an earlier checkpoint") && said.contains("counts"),
                    "{command:?}: {said}"
                );
            });
        }
    });
    for command in others {
        let answered = mesh.run(command);
        assert!(answered.status.success(), "{command:?}: {answered:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_that_was_put_back_is_noticed_and_resumed() {
    let mut mesh = with_an_event_of_alice(|_| {}).await;
    signed(&mesh, 8).await;
    let (backup, note) = back_up_and_continue(&mut mesh).await;

    let all = [DATABASE.as_slice(), &KEY].concat();
    copy(&backup, &mesh.path("data"), &all);
    mesh.spawn();
    mesh.wait_until("the doctor says what to do", || {
        let doctor = stdout(&mesh.run(&["doctor"]));
        doctor.contains("ledger.checkpoints") && doctor.contains("smesh ledger resume")
    });
    // A client that has seen more gets an error, and a monitor raises an alert.
    every_reader_refuses(&mesh);
    let monitor = ["ledger", "monitor", "--once", "--metrics", "monitor.prom"];
    let alert = mesh.run(&[&monitor[..], &["--json"]].concat());
    assert_eq!(alert.status.code(), Some(1), "{alert:?}");
    let alert: Value = serde_json::from_str(&stdout(&alert)).unwrap();
    assert_eq!(alert["reported"], true, "{alert}");
    let metrics = || std::fs::read_to_string(mesh.path("monitor.prom")).unwrap();
    let contradicted =
        "smesh_ledger_monitor_contradicted{origin=\"slurm-mesh.org/ledger/testbed\"}";
    assert!(
        metrics().contains(&format!("{contradicted} 1\n")),
        "{}",
        metrics()
    );
    // Nothing of it is erased. The restored `.last` fits it, so the bus says what is missing.
    let refused = mesh.run(&["ledger", "retain", "--before", "1ms", "--erase"]);
    let printed = stderr(&refused);
    assert_eq!(refused.status.code(), Some(1), "{printed}");
    assert!(
        printed.contains("was signed; restore the rest with `smesh ledger resume` first"),
        "{printed}"
    );
    let refused = mesh.run(&["ledger", "resume", "--from-checkpoint", "keys"]);
    assert!(stderr(&refused).contains("checkpoint"), "{refused:?}");
    let resumed = mesh.run(&["ledger", "resume", "--from-checkpoint", "kept.note"]);
    assert!(resumed.status.success(), "{}", stderr(&resumed));
    let size = size_of(&note).to_string();
    assert!(stdout(&resumed).contains(&size), "{}", stdout(&resumed));
    let newest = signed(&mesh, 10).await;
    assert_eq!(newest.lines().next(), note.lines().next());
    // The ledger continues what was seen before, so there is nothing to accept.
    let fine = mesh.run(&monitor);
    assert!(fine.status.success(), "{}", stderr(&fine));
    assert!(
        metrics().contains(&format!("{contradicted} 0\n")),
        "{}",
        metrics()
    );
    mesh.wait_until("the audit says it", || {
        let listed = stdout(&mesh.run(&["events", "--type", "audit.history", "--json"]));
        listed.contains("contradicted") && listed.contains("resumed")
    });
    let archives = mesh.run(&["ledger", "archives", "--json"]);
    assert!(stdout(&archives).contains("[]"), "{archives:?}");
    // A new key is accepted, because the former one handed over to it.
    assert!(mesh.run(&["ledger", "key", "rotate"]).status.success());
    signed(&mesh, 11).await;
    assert!(mesh.run(&monitor).status.success());
    let both = stdout(&mesh.run(&["ledger", "key", "show"]));
    std::fs::write(mesh.path("keys"), both).unwrap();
    let verify = ["verify", "--key", "keys", "--checkpoint", "kept.note"];
    let verified = mesh.run(&verify);
    assert!(verified.status.success(), "{}", stdout(&verified));
}
