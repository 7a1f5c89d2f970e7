//! Checks of a running service's OpenAPI description: served, complete, and true.

use std::collections::BTreeSet;
use std::process::Command;

use axum::http::StatusCode;
use mesh_runtime::api::Caller;
use serde::Serialize;
use serde_json::Value;

use super::TestService;

/// What schemathesis checks in every answer.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance,unsupported_method";

/// Checks that a service serves its description under a path, that it has all routes, and that each answers with a described status. In
/// paths the parameters are `nobody`.
///
/// # Panics
/// If one of these is not so.
pub async fn assert_describes_every_route(
    service: &TestService,
    caller: &Caller,
    path: &str,
    document: &impl Serialize,
) {
    let (status, served) = service.ask(caller.clone(), "GET", path, None).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(served, serde_json::to_value(document).unwrap());
    let paths = served["paths"].as_object().unwrap();
    let mut described: BTreeSet<String> = paths.keys().cloned().collect();
    described.insert(path.to_owned());
    assert_eq!(described, service.routes());
    for (path, methods) in paths {
        let path = with_names(path);
        for (method, described) in methods.as_object().unwrap() {
            let method = method.to_uppercase();
            let (status, answer) = service.ask(caller.clone(), &method, &path, None).await;
            let statuses = described["responses"].as_object().unwrap();
            let is_described = statuses.contains_key(status.as_str());
            assert!(is_described, "{method} {path}: {status} {answer}");
            assert_ne!(status, StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
        }
    }
}

/// A path whose parameters are `nobody`.
fn with_names(path: &str) -> String {
    let segments = path.split('/').map(|segment| match segment {
        parameter if parameter.starts_with('{') => "nobody",
        segment => segment,
    });
    segments.collect::<Vec<_>>().join("/")
}

/// Asks a served API with schemathesis, as a caller, and checks the answers against the description under this path. `values` are
/// values of parameters, such as `path.name`, that most requests use, so that they find something.
///
/// # Panics
/// If an answer is not as described, or `SCHEMATHESIS` is not set.
pub async fn assert_answers_conform(
    service: &TestService,
    caller: Caller,
    path: &str,
    values: &[(&str, Value)],
) {
    let program = std::env::var("SCHEMATHESIS").expect(
        "SCHEMATHESIS is the path of schemathesis; `make test` sets it (scripts/schemathesis)",
    );
    let mut config = String::new();
    for (parameter, values) in values {
        let name = parameter.replace('.', "-");
        config += &format!(
            "[dictionaries.{name}]\nvalues = {values}\n[parameters.\"{parameter}\"]\ndictionary = \"{name}\"\nprobability = 0.8\n"
        );
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("schemathesis.toml");
    std::fs::write(&file, config).unwrap();
    let url = service.serve(caller).await;
    let mut command = Command::new(program);
    command
        .arg("--config-file")
        .arg(file)
        .args(["run", &format!("{url}{path}")])
        .args(["--seed", "1", "-n", "20", "--no-color", "--checks", CHECKS])
        .current_dir(folder.path());
    let output = tokio::task::spawn_blocking(move || command.output());
    let output = output.await.unwrap().unwrap();
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
