//! Faults in a ledger of several pages, which are read in parallel.

use ledger::domain::verify::Fault;

use super::Victim;
use crate::support::{Database, on_both};

on_both!(faults_after_the_first_page_are_named,);

/// Three pages and a half.
const COUNT: i64 = 3500;

async fn faults_after_the_first_page_are_named(database: Database) {
    let mut victim = Victim::of(database, COUNT).await;
    let verified = victim.verify().await.unwrap();
    assert_eq!(verified.count, COUNT.unsigned_abs());
    let body = |seq| format!("UPDATE payloads SET body = x'00' WHERE seq = {seq}");
    for seq in [1001, 2000, 2999, 3500] {
        victim
            .check(&[&body(seq)], seq, Fault::ContentChanged)
            .await;
        let user = format!("UPDATE event_index SET user_name = 'mallory' WHERE seq = {seq}");
        victim.check(&[&user], seq, Fault::IndexDiffers).await;
        let node = format!("INSERT INTO event_nodes (seq, block) VALUES ({seq}, 'n[2-3]')");
        victim.check(&[&node], seq, Fault::IndexDiffers).await;
    }
    // The first fault counts, whatever page was read first.
    let both = [body(3400), body(1500)];
    victim
        .check(&[&both[0], &both[1]], 1500, Fault::ContentChanged)
        .await;
    // Gaps: one entry, more than a page, and all but the first page.
    for (first, last, what) in [
        (1001, 1001, Fault::Missing),
        (2000, 2000, Fault::Missing),
        (1500, 3100, Fault::Missing),
        (1001, 3499, Fault::Missing),
        (2501, 3500, Fault::CutOff),
        (2001, 3500, Fault::CutOff),
        (1001, 3500, Fault::CutOff),
    ] {
        let statements = ["entries", "payloads", "event_index", "event_nodes"]
            .map(|table| format!("DELETE FROM {table} WHERE seq BETWEEN {first} AND {last}"));
        let statements: Vec<&str> = statements.iter().map(String::as_str).collect();
        victim.check(&statements, first, what).await;
    }
    // A head that names another end.
    for (head, seq, what) in [
        (i64::MAX, 3501, Fault::CutOff),
        (3501, 3501, Fault::CutOff),
        (1200, 1201, Fault::Extra),
        (-1, 0, Fault::Extra),
    ] {
        let head = format!("UPDATE head SET seq = {head}");
        victim.check(&[&head], seq, what).await;
    }
}
