use super::*;

#[test]
fn every_answer_of_the_ledger_is_checked_before() {
    let document = ledger::api::openapi::document();
    // What resumes a ledger, replaces its key, or reports that it contradicts itself.
    let others = [
        "resumeLedger",
        "rotateSigningKey",
        "reportContradiction",
        "cancelReplay",
    ];
    let mut count = 0;
    for (path, item) in &document.paths.paths {
        for (method, operation) in [
            (Method::GET, &item.get),
            (Method::POST, &item.post),
            (Method::DELETE, &item.delete),
        ] {
            let Some(operation) = operation else { continue };
            let id = operation.operation_id.as_deref().unwrap();
            let expected = !others.contains(&id);
            assert_eq!(reads_ledger(&method, path), expected, "{method} {path}");
            count += 1;
        }
    }
    assert!(count > 18, "{count} operations");
    for other in [
        "/v1/queue/c/1",
        "/v1/costs/nodes",
        "/v1/webhooks",
        "/v1/trigger-runs",
        "/v1/eventsx",
    ] {
        assert!(!reads_ledger(&Method::GET, other), "{other}");
    }
}

#[test]
fn ids_survive_in_paths() {
    assert_eq!(segment("123+1"), "123%2B1");
    assert_eq!(segment("a/../b"), "a%2F..%2Fb");
}
