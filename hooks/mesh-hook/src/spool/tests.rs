//! Tests of the spool alone.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Instant, UNIX_EPOCH};

use super::file::BLOCK;
use super::*;

fn spool(limit: u64) -> (tempfile::TempDir, Spool) {
    let folder = tempfile::tempdir().unwrap();
    let spool = Spool::new(folder.path().join("spool"), limit);
    (folder, spool)
}

fn at(nanos: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(nanos)
}

#[test]
fn doorbells_come_back_in_the_order_of_their_calls() {
    let (_folder, spool) = spool(1 << 20);
    for n in [30, 10, 20] {
        spool
            .store(
                at(n),
                &format!("0192-{n}"),
                "mesh.c.hook.x",
                format!("body\n{n}").as_bytes(),
            )
            .unwrap();
    }
    let lock = spool.lock().unwrap().unwrap();
    let names = spool.waiting(&lock).unwrap();
    let doorbells = spool.read(&lock, &names[..2]).unwrap();
    assert_eq!(
        doorbells
            .iter()
            .map(|doorbell| doorbell.id.as_str())
            .collect::<Vec<_>>(),
        ["0192-10", "0192-20"]
    );
    assert_eq!(doorbells[0].subject, "mesh.c.hook.x");
    assert_eq!(doorbells[0].body, b"body\n10");
    for doorbell in &doorbells {
        spool.remove(&lock, doorbell).unwrap();
    }
    assert_eq!(spool.len().unwrap(), 1);
}

#[test]
fn only_one_flushes_at_a_time_and_none_when_there_is_nothing() {
    let (_folder, spool) = spool(1 << 20);
    assert!(spool.lock().unwrap().is_none());
    spool.store(at(1), "a", "s", b"x").unwrap();
    let held = spool.lock().unwrap();
    assert!(held.is_some());
    assert!(spool.lock().unwrap().is_none());
    drop(held);
    assert!(spool.lock().unwrap().is_some());
}

#[test]
fn the_limit_holds_and_the_oldest_stay() {
    let (_folder, spool) = spool(3 * BLOCK);
    for n in 0..3 {
        spool.store(at(n), &n.to_string(), "s", b"x").unwrap();
    }
    assert!(matches!(
        spool.store(at(9), "9", "s", b"x"),
        Err(Error::Full { .. })
    ));
    assert_eq!(spool.len().unwrap(), 3);
}

#[test]
fn a_damaged_file_is_put_aside_and_the_others_go_on() {
    let (_folder, spool) = spool(1 << 20);
    spool.store(at(1), "a", "s", b"first").unwrap();
    spool.store(at(2), "b", "s", b"second").unwrap();
    let damaged = spool.folder.join(&spool.names(WAITING).unwrap()[0]);
    let mut bytes = fs::read(&damaged).unwrap();
    bytes.truncate(bytes.len() - 1);
    fs::write(&damaged, bytes).unwrap();
    let lock = spool.lock().unwrap().unwrap();
    let names = spool.waiting(&lock).unwrap();
    let doorbells = spool.read(&lock, &names).unwrap();
    assert_eq!(
        doorbells
            .iter()
            .map(|doorbell| doorbell.id.as_str())
            .collect::<Vec<_>>(),
        ["b"]
    );
    assert!(damaged.with_extension("bad").exists());
}

#[test]
fn files_are_for_their_owner_only() {
    let (_folder, spool) = spool(1 << 20);
    spool.store(at(1), "a", "s", b"x").unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(mode(&spool.folder), 0o700);
    assert_eq!(
        mode(&spool.folder.join(&spool.names(WAITING).unwrap()[0])),
        0o600
    );
}

#[test]
fn usage_is_known_without_counting_and_counted_again_when_a_person_frees_space() {
    let (_folder, spool) = spool(3 * BLOCK);
    for n in 0..3 {
        spool.store(at(n), &n.to_string(), "s", b"x").unwrap();
    }
    let full = || matches!(spool.store(at(9), "9", "s", b"x"), Err(Error::Full { .. }));
    assert!(full());
    // Delivery is accounted at once.
    let lock = spool.lock().unwrap().unwrap();
    let names = spool.waiting(&lock).unwrap();
    let doorbells = spool.read(&lock, &names[..1]).unwrap();
    spool.remove(&lock, &doorbells[0]).unwrap();
    spool.store(at(3), "3", "s", b"x").unwrap();
    assert!(full());
    // A file removed by hand is noticed at the next count.
    fs::remove_file(spool.folder.join(&names[1])).unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    while full() {
        assert!(Instant::now() < until, "it is never counted again");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(spool.len().unwrap(), 3);
}

#[test]
fn a_full_spool_of_thousands_is_not_listed_for_each_that_does_not_fit() {
    let (_folder, spool) = spool(4 * BLOCK);
    spool.store(at(1), "a", "s", b"x").unwrap();
    // The used bytes are recorded, not listed: these files are not noticed before the next count.
    for n in 0..8 {
        fs::write(spool.folder.join(format!("{n:020}-x-1.bell")), "x").unwrap();
    }
    spool.store(at(2), "b", "s", b"x").unwrap();
    // A record from another boot, or a partial one, is invalid: the files are counted.
    for note in ["00000000000000000000 9999999999999 other-boot\n", "0", ""] {
        fs::write(spool.folder.join(".used"), note).unwrap();
        assert!(
            matches!(spool.store(at(3), "c", "s", b"x"), Err(Error::Full { .. })),
            "{note:?}"
        );
    }
}

#[test]
fn line_breaks_in_the_protocol_are_damaged_input() {
    let path = |id: &str| format!("00000000000000000001-{id}-9.bell");
    let read = |id: &str, subject: &str| {
        let name = path(id);
        parse(Path::new(&name), &content(subject, b"body")).is_some()
    };
    assert!(read("0192", "mesh.c.hook.x"));
    for (id, subject) in [
        ("0192", ""),
        ("0192", "a b"),
        ("0192", "a\r"),
        ("0192", "a\u{e9}"),
        ("01\r\nX: y", "a"),
        ("", "a"),
    ] {
        assert!(!read(id, subject), "{id:?} {subject:?}");
    }
}

#[test]
fn a_refused_doorbell_is_out_of_the_way_until_it_is_taken_back() {
    let (_folder, spool) = spool(1 << 20);
    spool.store(at(1), "a", "s", b"x").unwrap();
    spool.store(at(2), "b", "s", b"y").unwrap();
    let lock = spool.lock().unwrap().unwrap();
    let names = spool.waiting(&lock).unwrap();
    let doorbells = spool.read(&lock, &names).unwrap();
    spool.mark_refused(&lock, &doorbells[0]).unwrap();
    assert_eq!((spool.len().unwrap(), spool.refused().unwrap()), (1, 1));
    spool.take_back(&lock).unwrap();
    assert_eq!(spool.waiting(&lock).unwrap(), names, "in its old place");
}
