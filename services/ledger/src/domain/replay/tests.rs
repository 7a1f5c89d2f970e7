//! Permissions of replays, and their audit entries.

use mesh_events::proto::mesh::audit::v1::audit_entry::Act;
use mesh_runtime::api::Role;
use proptest::prelude::*;

use super::*;

const LIMITS: ReplayLimits = ReplayLimits {
    rate: 1000,
    max_rate: 5000,
    max_running: 4,
};

fn now() -> DateTime<Utc> {
    DateTime::from_timestamp(1_763_760_000, 0).unwrap()
}

fn check(request: &str, caller: &Caller) -> Result<ReplaySpec, ReplayRefused> {
    let request: ReplayRequest = serde_json::from_str(request).unwrap();
    request.check(caller, 100, &LIMITS, now())
}

fn alice() -> Caller {
    Caller::peer("alice", 1000, Role::User)
}

#[test]
fn the_range_ends_with_the_ledger_and_times_are_absolute() {
    let request = check(
        r#"{"filter": {"since": "2h", "type": ["job.*"]}}"#,
        &alice(),
    )
    .unwrap();
    assert_eq!(
        (request.begin(), request.end(), request.rate),
        (0, 100, 1000)
    );
    assert_eq!(
        request.filter_text(),
        r#"{"type":["job.*"],"since":"2025-11-21T19:20:00Z","to_seq":100}"#
    );
    let request = check(r#"{"filter": {"from_seq": 5, "to_seq": 1000}}"#, &alice()).unwrap();
    assert_eq!((request.begin(), request.end()), (4, 100));
    let stored = serde_json::to_string(&request).unwrap();
    assert_eq!(
        serde_json::from_str::<ReplaySpec>(&stored).unwrap(),
        request
    );
    assert_eq!(request.requester.visibility(), alice().visibility());
}

#[test]
fn invalid_and_forbidden_values_are_reported() {
    let admin = Caller::peer("root", 0, Role::Admin);
    for (request, field) in [
        (r#"{"rate": 0}"#, "rate"),
        (r#"{"rate": 5001}"#, "rate"),
        (r#"{"endpoint": ""}"#, "endpoint"),
        (r#"{"filter": {"type": ["audit.read"]}}"#, "type"),
        (r#"{"filter": {"job": "x"}}"#, "job"),
        (r#"{"filter": {"from_seq": 7, "to_seq": 6}}"#, "to_seq"),
    ] {
        let Err(ReplayRefused::Invalid(invalid)) = check(request, &admin) else {
            panic!("{request}")
        };
        assert_eq!(invalid.field, field);
        assert!(invalid.problem.contains("allowed: "), "{invalid}");
    }
    let auditor = Caller::peer("eve", 2, Role::Auditor);
    for caller in [&alice(), &auditor, &admin] {
        assert!(check(r#"{"endpoint": "ci"}"#, caller).is_ok());
    }
    for wrong in [r#"{"colour": 1}"#, r#"{"filter": {"colour": "red"}}"#] {
        assert!(
            serde_json::from_str::<ReplayRequest>(wrong).is_err(),
            "{wrong}"
        );
    }
}

#[test]
fn an_endpoint_is_for_its_owner_and_administrators() {
    let auditor = Caller::peer("eve", 2, Role::Auditor);
    let admin = Caller::peer("root", 0, Role::Admin);
    let of_alice = Some("alice");
    for (caller, owner) in [
        (&alice(), of_alice),
        (&admin, of_alice),
        (&admin, Some("")),
        (&auditor, Some("eve")),
    ] {
        assert_eq!(check_endpoint(caller, "ci", owner), Ok(()), "{owner:?}");
    }
    // Endpoints of others and of the operator do not exist for users. Callers who may see them get
    // 403.
    let carol = Caller::peer("carol", 1, Role::User).coordinating("c", "physics");
    for (caller, owner) in [
        (&alice(), Some("bob")),
        (&alice(), Some("")),
        (&alice(), None),
        (&carol, of_alice),
        (&auditor, None),
        (&admin, None),
    ] {
        let Err(ReplayRefused::Invalid(invalid)) = check_endpoint(caller, "ci", owner) else {
            panic!("{} {owner:?}", caller.name)
        };
        assert_eq!(invalid.field, "endpoint");
        assert!(invalid.problem.contains("no webhook endpoint \"ci\""));
    }
    let refused = check_endpoint(&auditor, "ci", of_alice).unwrap_err();
    assert!(matches!(refused, ReplayRefused::Forbidden(_)), "{refused}");
}

#[test]
fn audit_entries_are_deterministic() {
    let carol = Caller::peer("carol", 1, Role::User).coordinating("c", "physics");
    let request = check("{}", &carol).unwrap();
    let mut replay = Replay::new("r1".into(), request, now());
    let begun = replay.audit_entries(false, "c");
    for (seq, owner) in [(3, "carol"), (5, "bob"), (9, ""), (10, "bob")] {
        replay.add_sent(seq, owner);
    }
    assert_eq!(replay.audit_entries(false, "c"), begun);
    replay.end(ReplayState::Done, String::new(), now());
    assert_eq!((replay.sent, replay.cursor), (4, 100));
    let ended = replay.audit_entries(true, "c");
    let (Some(Act::Replay(act)), Some(Act::Read(read))) = (&ended[0].act, &ended[1].act) else {
        panic!("{ended:?}")
    };
    assert_eq!((act.outcome.as_str(), act.sent), ("done", 4));
    assert_eq!((read.whose.clone(), read.rows), (vec!["bob".to_owned()], 2));
    assert_eq!(read.begun, begun[1].id);
    let ids: BTreeSet<&String> = begun.iter().chain(&ended).map(|entry| &entry.id).collect();
    assert_eq!(ids.len(), 4);
    // Callers who see only their own data read nothing of others.
    let own = Replay::new("r2".into(), check("{}", &alice()).unwrap(), now());
    assert_eq!(own.audit_entries(false, "c").len(), 1);
}

proptest! {
    #[test]
    fn the_rate_is_respected(rate in 1u32..20_000, took in 0u64..2_000) {
        let sent = page(rate) as usize;
        prop_assert!((1..=500).contains(&sent));
        let took = Duration::from_millis(took);
        let whole = took + pause(sent, rate, took);
        prop_assert!(sent as f64 / whole.as_secs_f64() <= f64::from(rate) * 1.001);
    }
}
