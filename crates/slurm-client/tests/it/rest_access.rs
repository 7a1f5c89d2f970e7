//! Access records from a slurmrestd that answers badly, or for a user that may not see all others.

use serde_json::{Value, json};
use slurm_client::{AccessRecords, Error};

use crate::rest_server::{Reply, capture, path, server, text};

const OPENAPI: &str = "24.11/rest/openapi.json";

fn captured(file: &str) -> Value {
    serde_json::from_slice(&capture(&format!("24.11/access/{file}"))).unwrap()
}

/// The result for these responses of slurmrestd.
async fn found(
    associations: impl Fn() -> Reply + Send + Sync + 'static,
    users: impl Fn() -> Reply + Send + Sync + 'static,
) -> Result<AccessRecords, Error> {
    let dir = tempfile::tempdir().unwrap();
    let (slurm, ..) = server(dir.path(), move |head| match path(head) {
        "/openapi.json" => Reply::Status(200, capture(OPENAPI)),
        path if path.contains("/associations/") => associations(),
        _ => users(),
    });
    slurm.access("mesh", false).await
}

fn document(value: &Value) -> Reply {
    text(200, &value.to_string())
}

fn whole(file: &'static str) -> impl Fn() -> Reply + Send + Sync + 'static {
    move || document(&captured(file))
}

/// The captured response with its list changed.
fn changed(
    file: &'static str,
    change: impl Fn(&mut Vec<Value>) + Send + Sync + 'static,
) -> impl Fn() -> Reply + Send + Sync + 'static {
    move || {
        let mut answer = captured(file);
        let list = file.trim_end_matches(".json");
        change(answer[list].as_array_mut().unwrap());
        document(&answer)
    }
}

#[tokio::test]
async fn access_of_every_user_is_read() {
    let access = found(whole("associations.json"), whole("users.json"))
        .await
        .unwrap();
    assert_eq!((access.associations.len(), access.users.len()), (17, 6));
    let lin = access.users.iter().find(|user| user.user == "lin").unwrap();
    assert_eq!(lin.default_account, "lab");
    assert_eq!(lin.admin_level, "Operator");
    // Associations of another cluster are ignored.
    let all_theirs = changed("associations.json", |list| {
        for one in list.iter_mut().filter(|one| one["user"] == "lin") {
            one["cluster"] = "other".into();
        }
    });
    let access = found(all_theirs, whole("users.json")).await.unwrap();
    assert!(access.associations.iter().all(|one| one.user != "lin"));
    let lin = access.users.iter().find(|user| user.user == "lin").unwrap();
    assert_eq!(lin.default_account, "");
}

#[tokio::test]
async fn an_answer_that_may_be_incomplete_is_an_error() {
    let kind = async |answer: Result<AccessRecords, Error>| match answer {
        Ok(_) => "believed",
        Err(error) => error.kind(),
    };
    let (file, users) = ("associations.json", "users.json");
    let cut = |file: &'static str| {
        move || {
            let mut answer = captured(file).to_string();
            answer.truncate(answer.len() / 2);
            text(200, &answer)
        }
    };
    let with_error = |file: &'static str| {
        move || {
            let mut answer = captured(file);
            answer["errors"] = json!([{ "error_number": 1, "error": "Kaputt" }]);
            document(&answer)
        }
    };
    let down = || {
        let error = r#"{"errors":[{"error_number":7000,"error":"Unable to connect to database"}]}"#;
        text(200, error)
    };
    let empty = |file| changed(file, Vec::clear);
    // The records visible to a user from whom PrivateData hides all others: 24.11 and later, and 22.05, which also shows the accounts
    // above.
    let only_own = changed(file, |list| list.retain(|one| one["user"] == "alice"));
    let own_and_above = changed(file, |list| {
        list.retain(|one| one["user"] == "alice" || one["user"] == "");
    });
    let only_alice = || changed(users, |list| list.retain(|one| one["name"] == "alice"));
    let without_lin = changed(users, |list| list.retain(|one| one["name"] != "lin"));
    let without_limits = changed(file, |list| list[3]["max"] = json!({}));
    let unasked = changed(users, |list| {
        list[0].as_object_mut().unwrap().remove("coordinators");
    });
    for (number, (answer, expected)) in [
        (found(cut(file), whole(users)).await, "suspicious"),
        (found(whole(file), cut(users)).await, "suspicious"),
        (found(with_error(file), whole(users)).await, "reported"),
        (found(whole(file), with_error(users)).await, "reported"),
        (found(down, whole(users)).await, "accounting_down"),
        (found(empty(file), whole(users)).await, "suspicious"),
        (found(whole(file), empty(users)).await, "suspicious"),
        (found(only_own, only_alice()).await, "suspicious"),
        (found(own_and_above, only_alice()).await, "suspicious"),
        (found(whole(file), without_lin).await, "suspicious"),
        (found(without_limits, whole(users)).await, "malformed"),
        (found(whole(file), unasked).await, "malformed"),
        (
            found(|| text(401, "Authentication failure"), whole(users)).await,
            "denied",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(kind(answer).await, expected, "case {number}");
    }
}

#[tokio::test]
async fn a_server_that_reports_no_limits_is_not_queried() {
    for paths in [
        r#"{"paths":{"/slurm/v0.0.42/jobs/":{}}}"#,
        r#"{"paths":{"/slurmdb/v0.0.37/associations":{},"/slurmdb/v0.0.37/users":{}}}"#,
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (slurm, seen, _) = server(dir.path(), move |_| text(200, paths));
        let error = slurm.access("mesh", false).await.unwrap_err();
        assert!(matches!(error, Error::NotServed { .. }), "{error}");
        assert_eq!(seen.count("/slurmdb/"), 0);
    }
}
