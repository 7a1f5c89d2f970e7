//! Nodes that are out of service.

use super::*;

#[test]
fn cloud_nodes_that_failed_to_boot() {
    let job = Job {
        partition: "cloud".into(),
        ..job(GENERIC)
    };
    let mut evidence = cluster();
    for node in evidence
        .nodes
        .iter_mut()
        .filter(|node| node.name.starts_with('c'))
    {
        node.state = "DOWN".into();
        node.state_flags = vec!["CLOUD".into(), "POWERED_DOWN".into()];
        node.reason = "ResumeTimeout reached".into();
        node.reason_user = "slurm".into();
        node.reason_time = at(-60).timestamp();
    }
    let explanation = judged(&job, evidence);
    assert_eq!(
        verdict(&explanation),
        ("node_unavailable", "admin", true, false)
    );
    assert_contains(
        &explanation,
        &["c1 failed to boot (ResumeTimeout reached", "0 of the 2"],
    );
    assert_eq!(explanation.blockers.len(), 2);
}

/// Slurm 22.05 shows no record of a cloud node that is powered down, also of one that failed to boot.
#[test]
fn cloud_nodes_without_a_record_are_out_of_service_only_if_slurm_says_that_none_is_free() {
    let mut evidence = cluster();
    evidence.nodes.retain(|node| !node.name.starts_with('c'));
    let job = |reason: &str| Job {
        partition: "cloud".into(),
        ..job(reason)
    };
    let explanation = judged(&job(GENERIC), evidence.clone());
    assert_eq!(
        verdict(&explanation),
        ("node_unavailable", "admin", true, false)
    );
    assert_contains(
        &explanation,
        &["c1 and c2, which probably failed to boot", "0 of the 2"],
    );
    assert_eq!(explanation.blockers.len(), 2);
    let waits = judged(&job("Priority"), evidence);
    assert_eq!(verdict(&waits), ("waiting_turn", "wait", false, true));
}

/// 22.05 to 26.05 print the reason of one of its partitions, also if it waits for its turn in another.
#[test]
fn nodes_out_of_service_are_named_before_the_scheduler_has_decided() {
    let mut evidence = cluster();
    for node in evidence.nodes.iter_mut().take(2) {
        node.state_flags = vec!["DRAIN".into()];
        node.reason = "bad disk".into();
    }
    let explanation = judged(&job("None"), evidence);
    assert_eq!(
        verdict(&explanation),
        ("node_unavailable", "admin", true, false)
    );
    assert_contains(&explanation, &["n1 is drained (bad disk)"]);
}

#[test]
fn a_drained_node_is_named_with_its_reason_and_who_drained_it() {
    let job = Job {
        partition: "gpu".into(),
        ..job("ReqNodeNotAvail, UnavailableNodes:n4")
    };
    let mut evidence = cluster();
    let n4 = &mut evidence.nodes[3];
    n4.state_flags = vec!["DRAIN".into()];
    n4.reason = "bad disk".into();
    n4.reason_user = "root".into();
    n4.reason_time = at(-3_600).timestamp();
    let explanation = judged(&job, evidence);
    assert_eq!(
        verdict(&explanation),
        ("node_unavailable", "admin", true, false)
    );
    assert_contains(&explanation, &["n4 is drained (bad disk, by root since"]);
    let blocker = &explanation.blockers[0];
    assert_eq!(
        (blocker.name.as_str(), blocker.actor.as_str()),
        ("n4", "root")
    );
}
