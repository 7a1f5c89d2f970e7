//! `smesh whoami`: the caller's identity in the mesh and its permissions.

use std::process::ExitCode;

use serde_json::Value;

use crate::cli::Global;
use crate::client::Query;
use crate::error::Error;
use crate::{settings, show};

pub(super) async fn run(global: &Global) -> Result<ExitCode, Error> {
    let client = settings::client(global)?;
    let answer = client.get("/v1/whoami", &Query::new()).await?;
    if global.json {
        show::line(&answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    let text = |value: &Value| show::clean(value.as_str().unwrap_or_default());
    let list = |values: &Value, one: &dyn Fn(&Value) -> String| {
        let values = values.as_array().map(Vec::as_slice).unwrap_or_default();
        values.iter().map(one).collect::<Vec<_>>().join(", ")
    };
    show::line(show::bold(&format!(
        "{} ({}, known by {})",
        text(&answer["name"]),
        text(&answer["role"]),
        match answer["authentication"].as_str() {
            Some("unix") => "the Unix socket",
            Some("oidc") => "an OIDC token",
            _ => "a service token",
        }
    )))?;
    let users = list(&answer["users"], &text);
    let accounts = list(&answer["accounts"], &|one| match one["cluster"].as_str() {
        Some(cluster) => format!("{} on {}", text(&one["account"]), show::clean(cluster)),
        None => text(&one["account"]),
    });
    let identity = &answer["identity"];
    let identity = match identity.is_null() {
        true => String::new(),
        false => format!(
            "{} at {}",
            text(&identity["subject"]),
            text(&identity["issuer"])
        ),
    };
    let sees = if answer["sees_everything"] == true {
        "everything".to_owned()
    } else {
        match (users.is_empty(), accounts.is_empty()) {
            (true, true) => "nothing: you have no Unix user on this cluster".to_owned(),
            (false, true) => "your own jobs".to_owned(),
            (_, false) => "your own jobs, and those of these accounts".to_owned(),
        }
    };
    for (name, value) in [
        ("Unix users", users),
        ("Accounts", accounts),
        ("Identity", identity),
        ("Sees", sees),
    ] {
        if !value.is_empty() {
            show::line(format!("  {name}: {value}"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
