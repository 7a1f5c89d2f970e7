//! `smesh webhooks`: endpoints, their state, and actions on them.

mod deliveries;
mod fields;
mod preview;
mod view;

use std::process::ExitCode;

use reqwest::Method;
use serde_json::{Value, json};

use self::fields::{add, edit};
use self::view::{endpoint, list};
use super::events::recorded;
use crate::cli::{Global, Webhooks, WhichDeliveries};
use crate::client::{Query, segment};
use crate::error::Error;
use crate::secret_input::SecretInput;
use crate::{settings, show};

pub(super) async fn run(global: &Global, args: Webhooks) -> Result<ExitCode, Error> {
    let client = settings::client(global)?;
    let at = |name: &str| format!("/v1/webhooks/{}", segment(name));
    let send = async |method, path: &str, body: Value| {
        client.send_json(method, path, Some(&body), &[]).await
    };
    match args {
        Webhooks::Add(args) => {
            let made = send(Method::POST, "/v1/webhooks", add(&args)?).await?;
            output(global, &made, with_secret)?;
        }
        Webhooks::List => {
            let answer = client.get("/v1/webhooks", &Query::new()).await?;
            output(global, &answer, list)?;
        }
        Webhooks::Show { name } => {
            let mut answer = client.get(&at(&name), &Query::new()).await?;
            let which = WhichDeliveries::default();
            let mut newest = deliveries::list(&client, &name, None, &which, 20).await?;
            answer["deliveries"] = newest["deliveries"].take();
            output(global, &answer, endpoint)?;
        }
        Webhooks::Edit(args) => {
            let changed = send(Method::PATCH, &at(&args.name), edit(&args)?).await?;
            output(global, &changed, endpoint)?;
        }
        Webhooks::Pause { name, reason } => {
            let path = at(&name) + "/pause";
            let paused = send(Method::POST, &path, json!({ "reason": reason })).await?;
            output(global, &paused, endpoint)?;
        }
        Webhooks::Resume { name } => {
            let resumed = client.post(&(at(&name) + "/resume")).await?;
            output(global, &resumed, endpoint)?;
        }
        Webhooks::Test {
            name,
            event,
            dry_run,
        } => {
            let mut trial = json!({ "dry_run": dry_run });
            if let Some(id) = event {
                trial["event"] = recorded(&client, &id).await?;
            }
            let answer = send(Method::POST, &(at(&name) + "/test"), trial).await?;
            output(global, &answer, |answer| tested(answer, dry_run))?;
            if answer["delivered"] != true && !dry_run {
                return Ok(ExitCode::FAILURE);
            }
        }
        Webhooks::Preview(args) => {
            let mut draft = preview::draft(&args)?;
            if let Some(id) = &args.event {
                draft["event"] = recorded(&client, id).await?;
            }
            let rendered = send(Method::POST, "/v1/webhooks/preview", draft).await?;
            output(global, &rendered, |rendered| {
                preview::text(rendered, args.name.as_deref())
            })?;
        }
        Webhooks::Rotate {
            name,
            overlap,
            secret_file,
        } => {
            let mut rotation = json!({});
            if let Some(overlap) = overlap {
                rotation["overlap"] = overlap.into();
            }
            if let Some(file) = secret_file {
                rotation["secret"] = SecretInput::default().file("signing secret", &file)?.into();
            }
            let rotated = send(Method::POST, &(at(&name) + "/rotate"), rotation).await?;
            output(global, &rotated, with_secret)?;
        }
        Webhooks::Deliveries {
            name, id: Some(id), ..
        } => {
            let path = format!("{}/deliveries/{}", at(&name), segment(&id));
            let answer = client.get(&path, &Query::new()).await?;
            output(global, &answer, deliveries::one)?;
        }
        Webhooks::Deliveries {
            name,
            id: None,
            state,
            which,
            limit,
        } => {
            let answer = deliveries::list(&client, &name, state, &which, limit).await?;
            output(global, &answer, deliveries::table)?;
        }
        Webhooks::Dead { name, which, limit } => {
            let dead = Some("dead".to_owned());
            let answer = deliveries::list(&client, &name, dead, &which, limit).await?;
            output(global, &answer, deliveries::table)?;
        }
        Webhooks::Redeliver {
            name,
            ids,
            all,
            which,
            rate,
        } => match deliveries::redelivery(&ids, all, &which, rate) {
            Some(redelivery) => {
                let job = send(Method::POST, &(at(&name) + "/redeliver"), redelivery).await?;
                output(global, &job, deliveries::job)?;
            }
            None if rate.is_some() => {
                return Err(Error::Usage(
                    "--rate: select dead letters by ids, or with --all, --type, --cause, --since, --until"
                        .into(),
                ));
            }
            None => {
                let path = at(&name) + "/redeliveries";
                let answer = client.get(&path, &Query::new()).await?;
                output(global, &answer, deliveries::jobs)?;
            }
        },
        Webhooks::Remove { name } => {
            let none = client
                .send_json(Method::DELETE, &at(&name), None, &[])
                .await?;
            output(global, &none, |_| format!("{name} deleted"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn output(global: &Global, answer: &Value, text: impl Fn(&Value) -> String) -> Result<(), Error> {
    if global.json {
        show::line(answer)
    } else {
        show::line(text(answer))
    }
}

fn with_secret(answer: &Value) -> String {
    let webhook = &answer["webhook"];
    match answer["secret"].as_str() {
        Some(secret) => format!(
            "{}\n  signing secret, not shown again: {secret}",
            endpoint(webhook)
        ),
        None => endpoint(webhook),
    }
}

fn tested(answer: &Value, dry_run: bool) -> String {
    let mut lines = Vec::new();
    if let Some(body) = answer["body"].as_str() {
        lines.push(show::clean(body));
    }
    let name = show::value(&answer["webhook"]);
    if answer["matches"] != true {
        lines.push(format!(
            "{name} does not receive such events: its filter or format excludes them"
        ));
    }
    if !dry_run {
        lines.push(sent(answer));
    }
    lines.join("\n")
}

fn sent(answer: &Value) -> String {
    let (name, latency) = (
        show::value(&answer["webhook"]),
        show::value(&answer["latency_ms"]),
    );
    if answer["delivered"] == true {
        format!(
            "{name} accepted the test event: HTTP {} after {latency} ms",
            show::value(&answer["status"])
        )
    } else {
        format!(
            "{name} did not accept the test event: {}",
            show::clean(&show::value(&answer["error"]))
        )
    }
}
