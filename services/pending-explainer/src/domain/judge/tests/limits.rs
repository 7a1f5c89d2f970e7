//! Limits and licenses.

use mesh_events::proto::mesh::queue::v1::Account;

use super::*;

#[test]
fn more_than_a_group_limit_allows_at_all_can_never_start() {
    let job = Job {
        qos: "memq".into(),
        req_tres: "cpu=1,mem=2000M,node=1,billing=1".into(),
        ..job("QOSGrpMemLimit")
    };
    let evidence = EvidenceSnapshot {
        limits: vec![limit("memq", "GrpTRES", "mem", 1_000, Some(0))],
        ..cluster()
    };
    let explanation = judged(&job, evidence);
    assert_eq!(verdict(&explanation), ("limit", "user", true, false));
    assert_contains(
        &explanation,
        &["can never start", "2 GiB", "1000 MiB", "QOS memq"],
    );
    let blocker = &explanation.blockers[0];
    assert_eq!(
        (blocker.have, blocker.most, blocker.need),
        (Some(0), Some(1_000), Some(2_000))
    );
}

#[test]
fn a_limit_in_use_names_value_use_holder_and_what_frees_it() {
    let job = Job {
        qos: "limited".into(),
        ..job("QOSGrpCpuLimit")
    };
    let of_limited = |id, user: &str, end| RunningJob {
        qos: "limited".into(),
        end,
        ..running(id, user, "cpu", "cpu=1,mem=10M,node=1", "n1")
    };
    let evidence = EvidenceSnapshot {
        limits: vec![limit("limited", "GrpTRES", "cpu", 2, Some(2))],
        running: vec![
            of_limited(8, "bob", at(900).timestamp()),
            of_limited(7, "alice", at(300).timestamp()),
            running(9, "bob", "cpu", "cpu=4", "n2"),
        ],
        ..cluster()
    };
    let explanation = judged(&job, evidence);
    assert_eq!(verdict(&explanation), ("limit", "wait", false, false));
    assert_contains(
        &explanation,
        &[
            "QOS limited has 2 CPUs of 2 CPUs in use",
            "1 CPU too many",
            "in 5 min",
        ],
    );
    let frees: Vec<_> = explanation
        .frees
        .iter()
        .map(|free| (free.job.as_str(), free.amount))
        .collect();
    assert_eq!(frees, [("7", 1)]);
    assert_eq!(explanation.limit, "GrpTRES cpu");
}

#[test]
fn jobs_of_others_are_not_named() {
    let job = Job {
        qos: "limited".into(),
        ..job("QOSGrpCpuLimit")
    };
    let evidence = EvidenceSnapshot {
        limits: vec![limit("limited", "GrpTRES", "cpu", 1, Some(1))],
        running: vec![RunningJob {
            qos: "limited".into(),
            ..running(8, "bob", "cpu", "cpu=1", "n1")
        }],
        ..cluster()
    };
    let explanation = judged(&job, evidence);
    assert_eq!(explanation.frees[0].job, "");
    assert!(!format!("{explanation:?}").contains("bob"));
}

#[test]
fn a_partition_qos_in_use_behind_the_generic_text() {
    let job = Job {
        partition: "pq".into(),
        req_tres: "cpu=2,mem=10M,node=1,billing=2".into(),
        ..job(GENERIC)
    };
    let evidence = EvidenceSnapshot {
        limits: vec![limit("partq", "GrpTRES", "cpu", 2, Some(2))],
        running: vec![running(4, "alice", "pq", "cpu=2,mem=10M,node=1", "n1")],
        ..cluster()
    };
    let explanation = judged(&job, evidence);
    assert_eq!(verdict(&explanation), ("limit", "wait", false, false));
    assert_contains(
        &explanation,
        &["QOS partq of partition pq has 2 CPUs of 2 CPUs in use"],
    );
    assert_eq!(explanation.frees[0].job, "4");
}

#[test]
fn licenses_with_who_holds_them() {
    let job = |licenses: &str| Job {
        licenses: licenses.into(),
        ..job("Licenses")
    };
    let evidence = || EvidenceSnapshot {
        licenses: vec![License {
            name: "matlab".into(),
            total: 2,
            used: 2,
            reserved: 0,
        }],
        running: vec![RunningJob {
            licenses: "matlab:2".into(),
            ..running(9, "bob", "cpu", "cpu=1", "n1")
        }],
        ..cluster()
    };
    let explanation = judged(&job("matlab:1"), evidence());
    assert_eq!(explanation.actor, "wait");
    assert_contains(
        &explanation,
        &[
            "1 of 2 matlab licenses; 2 are in use, by 1 job of others",
            "in 10 min",
        ],
    );
    let mut one_in_use = evidence();
    one_in_use.licenses[0].used = 1;
    one_in_use.running[0].licenses = "matlab:1".into();
    let explanation = judged(&job("matlab:2"), one_in_use);
    assert_contains(&explanation, &["2 of 2 matlab licenses; 1 is in use, by 1"]);
    let explanation = judged(&job("matlab:3"), evidence());
    assert_eq!(verdict(&explanation), ("license", "user", true, false));
    assert_contains(&explanation, &["can never start", "3 matlab licenses"]);
}

#[test]
fn priority_that_hides_a_limit_says_both() {
    let job = Job {
        qos: "limited".into(),
        ..job("Priority")
    };
    let evidence = EvidenceSnapshot {
        limits: vec![Limit {
            user: "alice".into(),
            ..limit("limited", "MaxJobsPerUser", "", 1, Some(1))
        }],
        ..cluster()
    };
    let explanation = judged(&job, evidence);
    assert_eq!(explanation.reason_class, "waiting_turn");
    assert_contains(
        &explanation,
        &[
            "When its turn comes, a limit may stop it",
            "1 job of 1 job in use",
        ],
    );
}

#[test]
fn limits_of_associations_count_at_every_level_or_the_nearest() {
    let of_account = |account: &str, user: &str, name: &str, tres: &str, value, used| Limit {
        account: account.into(),
        user: user.into(),
        ..limit("", name, tres, value, used)
    };
    let with = |limits| {
        let mut evidence = cluster();
        evidence.limits = limits;
        evidence.accounts = vec![Account {
            name: "physics".into(),
            parent: "acme".into(),
        }];
        evidence
    };
    let grp = with(vec![of_account("acme", "", "GrpTRES", "cpu", 8, Some(8))]);
    let explanation = judged(&job("AssocGrpCpuLimit"), grp);
    assert_eq!(verdict(&explanation), ("limit", "wait", false, false));
    assert_contains(&explanation, &["Account acme has 8 CPUs of 8 CPUs in use"]);
    // The user's own limit overrides that of the account.
    let max = with(vec![
        of_account("physics", "", "MaxWallDurationPerJob", "", 5, None),
        of_account("physics", "alice", "MaxWallDurationPerJob", "", 60, None),
    ]);
    let explanation = judged(&job("Resources"), max);
    assert_eq!(explanation.reason_class, "waiting_turn");
    // Another account's limits are of no concern.
    let other = with(vec![of_account("ml", "", "GrpTRES", "cpu", 0, Some(8))]);
    assert_eq!(
        judged(&job("Resources"), other).reason_class,
        "waiting_turn"
    );
}

#[test]
fn what_slurm_said_at_its_last_pass_may_be_over() {
    let job = Job {
        qos: "limited".into(),
        ..job("QOSGrpCpuLimit")
    };
    for (used, text) in [
        (0, "There is room by now: 0 of 2 CPUs are in use"),
        (1, "There is room by now: 1 of 2 CPUs is in use"),
    ] {
        let evidence = EvidenceSnapshot {
            limits: vec![limit("limited", "GrpTRES", "cpu", 2, Some(used))],
            ..cluster()
        };
        assert_contains(&judged(&job, evidence), &[text]);
    }
}
