//! `smesh publish`.

use std::cell::Cell;
use std::fs;
use std::time::{Duration, Instant};

use crate::mesh::Mesh;

#[test]
fn what_is_published_too_fast_is_sent_again_when_the_rate_allows_it() {
    let mut mesh = Mesh::init();
    let path = mesh.path("mesh.toml");
    let text = fs::read_to_string(&path).unwrap();
    // An event every five seconds. Off without a rule.
    let section = "[[workflow-trigger.rules]]\nname = \"manual\"\nowner = \"alice\"\non = { manual = true }\naction = { cancel = \"{{ data.job }}\" }\n\
                   [workflow-trigger.limits]\nuser_events_per_minute = 12\n";
    mesh_testkit::write_private(&path, format!("{text}\n{section}"));
    mesh.start();
    let publish = || mesh.run(&["publish", "--type", "step.done"]);
    let begin = Cell::new(Instant::now());
    mesh.wait_until("events are taken", || {
        begin.set(Instant::now());
        publish().status.success()
    });
    // Twelve at once, then one every five seconds.
    for _ in 1..14 {
        let output = publish();
        assert!(output.status.success(), "{output:?}");
    }
    let took = begin.get().elapsed();
    assert!(took >= Duration::from_secs(10), "no limit: {took:?}");
}
