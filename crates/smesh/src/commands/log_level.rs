//! `smesh log-level`: shows or changes the log filter of a running process.

use std::process::ExitCode;

use reqwest::Method;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::cli::{Global, LogLevel};
use crate::client::{ApiAddress, Client, Query};
use crate::error::Error;
use crate::{settings, show};

const PATH: &str = "/v1/log-filter";

pub(super) async fn run(global: &Global, args: &LogLevel) -> Result<ExitCode, Error> {
    let client = match &args.service {
        Some(service) => {
            let context = settings::load(global, CancellationToken::new())?;
            let socket = context.mesh.data_dir.join(format!("{service}.sock"));
            Client::new(ApiAddress::Unix(socket))?
        }
        None => settings::client(global)?,
    };
    let answer = match &args.filter {
        Some(filter) => {
            let body = json!({ "filter": filter });
            client
                .send_json(Method::PUT, PATH, Some(&body), &[])
                .await?
        }
        None => client.get(PATH, &Query::new()).await?,
    };
    if global.json {
        show::line(&answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    let text = |name: &str| show::clean(answer[name].as_str().unwrap_or_default());
    show::line(match answer["former"].is_null() {
        true => text("filter"),
        false => format!("{} (it was {})", text("filter"), text("former")),
    })?;
    Ok(ExitCode::SUCCESS)
}
