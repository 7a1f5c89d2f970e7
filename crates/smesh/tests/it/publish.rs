//! `smesh publish`.

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
    mesh.wait_until("events are taken", || publish().status.success());
    let begin = Instant::now();
    for _ in 0..12 {
        let output = publish();
        assert!(output.status.success(), "{output:?}");
    }
    let took = begin.elapsed();
    assert!(took >= Duration::from_secs(4), "no limit: {took:?}");
}
