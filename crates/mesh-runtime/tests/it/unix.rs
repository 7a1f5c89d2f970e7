//! The Unix socket identifies the caller; TCP does not.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use mesh_runtime::api::Caller;
use mesh_testkit::wait_until;
use serde_json::json;

use crate::support::{DEADLINE, Server, read};

const TOKEN: &str = "a token of enough characters";

fn write(file: &Path, token: &str) {
    std::fs::write(file, token).unwrap();
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_is_authenticated_by_uid_and_a_tcp_caller_by_token() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    write(&file, TOKEN);
    let server = Server::start(&format!("token_file = {file:?}"), "").await;
    let unix = reqwest::Client::builder()
        .unix_socket(server.path("api.sock"))
        .build()
        .unwrap();
    let me = uzers::get_current_username().unwrap();
    let (status, _, answer) = read(unix.get("http://mesh/v1/whoami")).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(
        (&answer["authentication"], &answer["users"]),
        (&json!("unix"), &json!([me.to_string_lossy()]))
    );
    // A proxy at the other end of the socket passes on the caller's token.
    let request = unix.get("http://mesh/v1/whoami").bearer_auth(TOKEN);
    assert_eq!(read(request).await.2["name"], "token:token_file");
    let request = unix
        .get("http://mesh/v1/whoami")
        .bearer_auth("something else");
    assert_eq!(read(request).await.0, 401);

    let (status, challenge, problem) = server.whoami(None).await;
    assert_eq!(
        (status, challenge.as_str()),
        (401, "Bearer realm=\"slurm-mesh\"")
    );
    assert!(
        problem["detail"]
            .as_str()
            .unwrap()
            .contains("Authorization: Bearer")
    );
    let (status, challenge, _) = server.whoami(Some("0123456789abcdef")).await;
    assert_eq!(status, 401);
    assert!(challenge.contains("error=\"invalid_token\""), "{challenge}");
    let (_, _, answer) = server.whoami(Some(TOKEN)).await;
    assert_eq!(
        (&answer["role"], &answer["may_write"]),
        (&json!("admin"), &json!(true))
    );
    // A changed token file takes effect without a restart.
    write(&file, "a token that came later");
    wait_until("the new token counts", DEADLINE, async || {
        server.whoami(Some("a token that came later")).await.0 == 200
    })
    .await;
    assert_eq!(server.whoami(Some(TOKEN)).await.0, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_for_metrics_reads_metrics_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    write(&file, TOKEN);
    let tokens = format!(
        "[[mesh.api.tokens]]\nname = \"prometheus\"\nrole = \"metrics\"\nfile = {file:?}\n"
    );
    let server = Server::start(&tokens, "").await;
    let (_, _, me) = server.whoami(Some(TOKEN)).await;
    assert_eq!(
        (&me["role"], &me["sees_everything"], &me["may_write"]),
        (&json!("metrics"), &json!(false), &json!(false))
    );
    let unix = reqwest::Client::builder()
        .unix_socket(server.path("api.sock"))
        .build()
        .unwrap();
    let metrics = unix.get("http://mesh/metrics").bearer_auth(TOKEN);
    assert_eq!(metrics.send().await.unwrap().status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn problem_details_require_a_role_that_sees_everything() {
    let folder = tempfile::tempdir().unwrap();
    let mut tokens = String::new();
    for role in ["admin", "auditor", "metrics", "user"] {
        let file = folder.path().join(role);
        write(&file, &format!("{TOKEN}-{role}"));
        tokens +=
            &format!("[[mesh.api.tokens]]\nname = {role:?}\nrole = {role:?}\nfile = {file:?}\n");
    }
    let tokens = tokens.replace(
        "role = \"user\"\n",
        "role = \"user\"\nusers = [\"alice\"]\n",
    );
    let server = Server::start(&tokens, "").await;
    server
        .health
        .condition("x.database")
        .fail("/srv/x.db is gone");
    server
        .health
        .note("x.repairs")
        .say("consumer x was deleted");
    let unix = reqwest::Client::builder()
        .unix_socket(server.path("api.sock"))
        .build()
        .unwrap();
    let ask = async |role: Option<&str>| {
        let mut request = unix.get("http://mesh/readyz");
        if let Some(role) = role {
            request = request.bearer_auth(format!("{TOKEN}-{role}"));
        }
        let (status, _, answer) = read(request).await;
        assert_eq!((status, &answer["ready"]), (503, &json!(false)));
        let message = [
            &answer["problems"]["x.database"],
            &answer["notes"]["x.repairs"],
        ];
        message.map(|text| text.as_str().unwrap().to_owned())
    };
    let all = ["/srv/x.db is gone", "consumer x was deleted"];
    for role in [None, Some("admin"), Some("auditor")] {
        assert_eq!(ask(role).await, all, "{role:?}");
    }
    for role in ["metrics", "user", "nobody"] {
        assert_eq!(
            ask(Some(role)).await,
            ["details only for administrators"; 2],
            "{role}"
        );
    }
    let (status, _, answer) = server.get("/readyz").await;
    assert_eq!(
        (status, &answer["problems"]["x.database"]),
        (503, &json!("details only for administrators")),
        "over TCP without a token"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signed_request_has_no_caller() {
    let routes = axum::Router::new()
        .route("/v1/in/open", axum::routing::get(async || "open"))
        .route(
            "/v1/in/guarded",
            axum::routing::get(async |caller: Caller| caller.name),
        )
        .route("/v1/in", axum::routing::get(async || "people"));
    let file = tempfile::NamedTempFile::new().unwrap();
    mesh_testkit::write_private(file.path(), TOKEN);
    let tokens = format!("token_file = {:?}", file.path());
    let server = Server::start_with(&tokens, "", routes).await;
    let http = reqwest::Client::new();
    for (path, status) in [
        ("/v1/in/open", 200),
        ("/v1/in/guarded", 401),
        ("/v1/in", 401),
        ("/v1/in/../whoami", 401),
    ] {
        let answer = http
            .get(format!("http://{}{path}", server.address()))
            .bearer_auth("of the source")
            .send()
            .await
            .unwrap();
        assert_eq!(answer.status(), status, "{path}");
    }
}
