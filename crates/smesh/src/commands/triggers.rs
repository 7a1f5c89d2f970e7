//! `smesh triggers`: rules that start jobs, and their runs.

mod apply;
mod text;

use std::io::Read as _;
use std::process::ExitCode;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use self::text::{document, rules, runs, tested};
pub(super) use self::text::{ended, job};
use super::events::recorded;
use crate::cli::{Global, Publish, Triggers};
use crate::client::{Client, Query, segment};
use crate::error::Error;
use crate::{settings, show};

/// Beginning of the keys of runs.
const KEY_PREFIX: &str = "smesh:1:";
/// Runs of a page.
const MAX_PAGE: usize = 1_000;
/// How long `smesh publish` waits in all if the caller has published too much.
const MAX_WAIT: Duration = Duration::from_secs(60);

pub(super) async fn run(global: &Global, args: Triggers) -> Result<ExitCode, Error> {
    let client = settings::client(global)?;
    match args {
        Triggers::List => {
            let answer = client.get("/v1/triggers", &Query::new()).await?;
            print(global, &answer, rules)
        }
        Triggers::Apply {
            files,
            dry_run,
            prune,
            yes,
        } => {
            let request = apply::Request {
                files,
                is_dry_run: dry_run,
                prunes: prune,
                is_confirmed: yes,
            };
            let answer = apply::run(&client, &request).await?;
            print(global, &answer, apply::text)
        }
        Triggers::Delete { rule } => {
            let name = full_name(&client, &rule).await?;
            client
                .send_json(Method::DELETE, &path(&name, ""), None, &[])
                .await?;
            done(global, &format!("deleted {name}"))
        }
        Triggers::Show { rule } => {
            let name = full_name(&client, &rule).await?;
            let mut answer = client.get(&path(&name, ""), &Query::new()).await?;
            let query = vec![("rule", name), ("limit", "10".to_owned())];
            let found = client.get("/v1/trigger-runs", &query).await?;
            answer["runs"] = found["runs"].clone();
            print(global, &answer, |answer| {
                let script = answer["script"].as_str().unwrap_or_default();
                let script: String = script
                    .lines()
                    .map(|line| format!("\n  {}", show::clean(line)))
                    .collect();
                let script = match script.as_str() {
                    "" => script,
                    lines => format!("\nscript{lines}"),
                };
                let keys = document(answer, &["runs", "script"]);
                format!("{keys}{script}\n\n{}", runs(answer))
            })
        }
        Triggers::Test { rule, event, data } => {
            let name = full_name(&client, &rule).await?;
            let body = match event {
                Some(event) => json!({"event": read_event(&client, &event).await?}),
                None => json!({"data": read_json("--data", data.as_deref().unwrap_or("{}"))?}),
            };
            let path = path(&name, "/test");
            let answer = client
                .send_json(Method::POST, &path, Some(&body), &[])
                .await?;
            print(global, &answer, tested)
        }
        Triggers::Fire { rule, data, id } => {
            let name = full_name(&client, &rule).await?;
            let mut body = json!({"data": read_json("--data", &data)?});
            if let Some(id) = id {
                body["id"] = id.into();
            }
            let path = path(&name, "/fire");
            let answer = client
                .send_json(Method::POST, &path, Some(&body), &[])
                .await?;
            print(global, &answer, |answer| {
                let key = show::value(&answer["key"]);
                match answer["is_new"].as_bool() {
                    Some(false) => format!("fired before: run {key}"),
                    _ => format!("run {key}"),
                }
            })
        }
        Triggers::Pause { rule, reason } => {
            let name = full_name(&client, &rule).await?;
            let body = json!({ "reason": reason });
            let path = path(&name, "/pause");
            client
                .send_json(Method::POST, &path, Some(&body), &[])
                .await?;
            done(global, &format!("{name} is paused"))
        }
        Triggers::Resume { rule } => {
            let name = full_name(&client, &rule).await?;
            client.post(&path(&name, "/resume")).await?;
            done(global, &format!("{name} is resumed"))
        }
        Triggers::Runs { rule, state, limit } => match rule {
            Some(key) if key.starts_with(KEY_PREFIX) => {
                let path = format!("/v1/trigger-runs/{}", segment(&key));
                let answer = client.get(&path, &Query::new()).await?;
                print(global, &answer, |answer| document(answer, &[]))
            }
            rule => list(global, &client, rule, state, limit).await,
        },
        Triggers::Dead { rule, limit } => {
            list(global, &client, rule, Some("dead".to_owned()), limit).await
        }
        Triggers::Approve { key } => {
            let path = format!("/v1/trigger-runs/{}/approve", segment(&key));
            let answer = client.post(&path).await?;
            print(global, &answer, |answer| decided(answer, "approved"))
        }
        Triggers::Reject { key, reason } => {
            let path = format!("/v1/trigger-runs/{}/reject", segment(&key));
            let body = json!({ "reason": reason });
            let answer = client
                .send_json(Method::POST, &path, Some(&body), &[])
                .await?;
            print(global, &answer, |answer| decided(answer, "rejected"))
        }
        Triggers::Redrive { key } => {
            let path = format!("/v1/trigger-runs/{}/redrive", segment(&key));
            let answer = client.post(&path).await?;
            print(global, &answer, |answer| {
                format!("run {} is planned again", show::value(&answer["key"]))
            })
        }
    }
}

fn decided(run: &Value, how: &str) -> String {
    let value = |key: &str| show::clean(&show::value(&run[key]));
    format!("run {} of {} is {how}", value("key"), value("rule"))
}

/// `smesh publish`
pub(super) async fn publish(global: &Global, args: Publish) -> Result<ExitCode, Error> {
    let client = settings::client(global)?;
    let mut body = json!({
        "type": args.r#type,
        "data": read_json("--data", &args.data)?,
    });
    if let Some(id) = args.id {
        body["id"] = id.into();
    }
    if let Some(job) = args.job {
        body["job_id"] = job.into();
    }
    let mut left = MAX_WAIT;
    let answer = loop {
        let sent = client
            .send_json(Method::POST, "/v1/in", Some(&body), &[])
            .await;
        let Some(wait) = sent.as_ref().err().and_then(|error| wait(error, left)) else {
            break sent?;
        };
        tokio::time::sleep(wait).await;
        left -= wait;
    };
    print(global, &answer, |answer| {
        format!("event {}", show::clean(&show::value(&answer["ids"][0])))
    })
}

/// How long to wait before a request is repeated that was refused because of a limit. `None` if that is not the cause, or too long.
fn wait(error: &Error, left: Duration) -> Option<Duration> {
    let Error::Refused {
        status: 429,
        retry_after: Some(seconds),
        ..
    } = error
    else {
        return None;
    };
    let wait = Duration::from_secs((*seconds).max(1));
    (wait <= left).then_some(wait)
}

async fn list(
    global: &Global,
    client: &Client,
    rule: Option<String>,
    state: Option<String>,
    limit: u32,
) -> Result<ExitCode, Error> {
    let mut query = Query::new();
    if let Some(rule) = rule {
        query.push(("rule", full_name(client, &rule).await?));
    }
    if let Some(state) = state {
        query.push(("state", state));
    }
    let listed = all_runs(client, query, limit as usize).await?;
    print(global, &json!({ "runs": listed }), runs)
}

/// The runs that meet a query, page by page, the newest first and at most this many.
pub(super) async fn all_runs(
    client: &Client,
    query: Query,
    limit: usize,
) -> Result<Vec<Value>, Error> {
    let mut runs = Vec::new();
    let mut cursor = None;
    loop {
        let mut page = query.clone();
        page.push(("limit", (limit - runs.len()).clamp(1, MAX_PAGE).to_string()));
        page.extend(cursor.map(|cursor| ("cursor", cursor)));
        let mut answer = client.get("/v1/trigger-runs", &page).await?;
        if let Some(found) = answer["runs"].as_array_mut() {
            runs.append(found);
        }
        cursor = answer["next_cursor"].as_str().map(str::to_owned);
        if cursor.is_none() || runs.len() >= limit {
            return Ok(runs);
        }
    }
}

/// Full name of a rule: that of the caller if no owner is given.
async fn full_name(client: &Client, rule: &str) -> Result<String, Error> {
    if rule.contains('/') {
        return Ok(rule.to_owned());
    }
    let caller = client.get("/v1/whoami", &Query::new()).await?;
    let rules = client.get("/v1/triggers", &Query::new()).await?;
    own_rule(rule, &caller, &rules).map_err(Error::Usage)
}

/// The caller's rule of this name, or an error that says what else to write.
fn own_rule(name: &str, caller: &Value, rules: &Value) -> Result<String, String> {
    let users = caller["users"].as_array().into_iter().flatten();
    let users: Vec<String> = users.map(show::value).collect();
    let rules = ["rules", "unusable"].map(|list| rules[list].as_array().into_iter().flatten());
    let rules = rules.into_iter().flatten();
    let rules: Vec<String> = rules.map(|rule| show::value(&rule["rule"])).collect();
    let mut own = users.iter().map(|user| format!("{user}/{name}"));
    if let Some(rule) = own.find(|rule| rules.contains(rule)) {
        return Ok(rule);
    }
    let of_others = rules
        .into_iter()
        .filter(|rule| rule.split_once('/').is_some_and(|(_, other)| other == name));
    let of_others: Vec<String> = of_others.collect();
    let name = show::clean(name);
    Err(match of_others.as_slice() {
        [] => format!(
            "{name}: no such rule that you may see (smesh triggers list); of a removed rule name the owner, too: USER/{name}"
        ),
        others => format!(
            "{name}: you have no such rule; name the owner, too: {}",
            others.join(" or ")
        ),
    })
}

fn path(rule: &str, act: &str) -> String {
    let (owner, name) = rule.split_once('/').unwrap_or_default();
    format!("/v1/triggers/{}/{}{act}", segment(owner), segment(name))
}

/// An event of the ledger by its id, or from a file.
async fn read_event(client: &Client, event: &str) -> Result<Value, Error> {
    let is_id = event.len() == 36 && event.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    if is_id {
        return recorded(client, event).await;
    }
    match event {
        "-" => read_json("--event", "-"),
        file => read_json("--event", &format!("@{file}")),
    }
}

fn read_json(option: &str, text: &str) -> Result<Value, Error> {
    let read = match text.strip_prefix('@') {
        Some(file) => {
            std::fs::read_to_string(file).map_err(|source| Error::io("read", file, source))?
        }
        None if text == "-" => {
            let mut input = String::new();
            std::io::stdin()
                .read_to_string(&mut input)
                .map_err(|source| Error::io("read", "standard input", source))?;
            input
        }
        None => text.to_owned(),
    };
    serde_json::from_str(&read).map_err(|error| Error::Usage(format!("{option}: {error}")))
}

fn print(
    global: &Global,
    answer: &Value,
    text: impl FnOnce(&Value) -> String,
) -> Result<ExitCode, Error> {
    match global.json {
        true => show::line(answer)?,
        false => show::line(text(answer))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn done(global: &Global, text: &str) -> Result<ExitCode, Error> {
    if !global.json {
        show::line(show::clean(text))?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_without_an_owner_is_the_callers() {
        let rules = json!({"rules": [
            {"rule": "alice/plot"}, {"rule": "bob/plot"}, {"rule": "bob/plotting"}
        ]});
        let of = |users: Value, name| own_rule(name, &json!({ "users": users }), &rules);
        assert_eq!(of(json!(["bob"]), "plot").unwrap(), "bob/plot");
        assert_eq!(of(json!(["carol", "alice"]), "plot").unwrap(), "alice/plot");
        let error = of(json!(["root"]), "plot").unwrap_err();
        assert!(error.ends_with(": alice/plot or bob/plot"), "{error}");
        let error = of(json!([]), "plotting").unwrap_err();
        assert!(error.ends_with(": bob/plotting"), "{error}");
        let error = of(json!(["bob"]), "gone").unwrap_err();
        assert!(error.ends_with(": USER/gone"), "{error}");
    }

    #[test]
    fn what_is_refused_by_a_rate_is_sent_again_and_nothing_else() {
        let refused = |status, retry_after| Error::Refused {
            status,
            detail: String::new(),
            retry_after,
        };
        let seconds = Duration::from_secs;
        for (error, left, expected) in [
            (refused(429, Some(7)), seconds(60), Some(seconds(7))),
            (refused(429, Some(0)), seconds(60), Some(seconds(1))),
            (refused(429, Some(7)), seconds(6), None),
            (refused(429, Some(3_600)), seconds(60), None),
            (refused(429, None), seconds(60), None),
            // The event may be on the bus.
            (refused(503, Some(5)), seconds(60), None),
            (Error::Usage(String::new()), seconds(60), None),
        ] {
            assert_eq!(wait(&error, left), expected, "{error:?}");
        }
    }
}
