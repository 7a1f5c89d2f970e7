//! `smesh triggers apply`: rules of files by API. Everything is checked before anything is changed.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use reqwest::Method;
use serde_json::{Value, json};

use super::path;
use crate::client::{Client, Query};
use crate::commands::backup::confirmed;
use crate::error::Error;
use crate::show;

/// What to apply.
pub(super) struct Request {
    pub files: Vec<PathBuf>,
    pub is_dry_run: bool,
    /// Whether other rules of the caller are deleted.
    pub prunes: bool,
    /// Whether that needs no question.
    pub is_confirmed: bool,
}

/// A rule of a file.
struct FileRule {
    /// `owner/name`
    name: String,
    definition: Value,
}

pub(super) async fn run(client: &Client, request: &Request) -> Result<Value, Error> {
    let caller = client.get("/v1/whoami", &Query::new()).await?;
    let users = caller["users"].as_array().into_iter().flatten();
    let users: Vec<String> = users.map(show::value).collect();
    let mut rules: Vec<FileRule> = Vec::new();
    for file in &request.files {
        let read = read(file, &users)
            .map_err(|problem| Error::Failed(format!("{}: {problem}", file.display())))?;
        rules.extend(read);
    }
    let mut names = BTreeSet::new();
    if let Some(twice) = rules.iter().find(|rule| !names.insert(&rule.name)) {
        let name = show::clean(&twice.name);
        return Err(Error::Failed(format!("rule {name}: it is there twice")));
    }
    let results = check(client, &rules).await?;
    let to_delete = match request.prunes {
        true => others(client, &users, &names).await?,
        false => Vec::new(),
    };
    let mut applied: Vec<Value> = Vec::new();
    if !request.is_dry_run {
        if !to_delete.is_empty() && !request.is_confirmed {
            let list = show::clean(&to_delete.join(", "));
            if !confirmed(&format!("Delete {list}?"))? {
                return Err(Error::Usage(format!(
                    "nothing was done; --yes deletes {list} without asking"
                )));
            }
        }
        for (rule, result) in rules.iter().zip(&results) {
            if result != "unchanged" {
                let sent = put(client, rule, false).await;
                sent.inspect_err(|_| {
                    let name = show::clean(&rule.name);
                    anstream::eprintln!("rule {name} not applied, later ones not sent");
                })?;
            }
        }
        for name in &to_delete {
            client
                .send_json(Method::DELETE, &path(name, ""), None, &[])
                .await?;
        }
    }
    for (rule, result) in rules.iter().zip(&results) {
        applied.push(json!({ "rule": rule.name, "result": result }));
    }
    for name in &to_delete {
        applied.push(json!({ "rule": name, "result": "deleted" }));
    }
    Ok(json!({ "rules": applied, "dry_run": request.is_dry_run }))
}

/// A line for each rule.
pub(super) fn text(answer: &Value) -> String {
    let dry_run = match answer["dry_run"].as_bool() {
        Some(true) => " (dry run)",
        _ => "",
    };
    let rules = answer["rules"].as_array().into_iter().flatten();
    let lines: Vec<String> = rules
        .map(|rule| {
            let value = |key: &str| show::clean(&show::value(&rule[key]));
            format!("{} {}{dry_run}", value("result"), value("rule"))
        })
        .collect();
    match lines.is_empty() {
        true => "no rules".to_owned(),
        false => lines.join("\n"),
    }
}

/// What would become of each rule: `created`, `changed` or `unchanged`.
async fn check(client: &Client, rules: &[FileRule]) -> Result<Vec<String>, Error> {
    let (mut results, mut refusals) = (Vec::new(), Vec::new());
    let mut first_status = None;
    for rule in rules {
        match put(client, rule, true).await {
            Ok(answer) => results.push(show::value(&answer["result"])),
            Err(Error::Refused {
                status: status @ (400 | 403 | 409),
                detail,
                ..
            }) => {
                first_status.get_or_insert(status);
                refusals.push(show::clean(&format!("rule {}: {detail}", rule.name)));
            }
            Err(error) => return Err(error),
        }
    }
    match first_status {
        None => Ok(results),
        Some(status) => Err(Error::Refused {
            status,
            detail: format!("{}\nnothing was changed", refusals.join("\n")),
            retry_after: None,
        }),
    }
}

async fn put(client: &Client, rule: &FileRule, is_dry_run: bool) -> Result<Value, Error> {
    let path = path(&rule.name, &format!("?dry_run={is_dry_run}"));
    client
        .send_json(Method::PUT, &path, Some(&rule.definition), &[])
        .await
}

/// Rules by API of these users that have none of these names.
async fn others(
    client: &Client,
    users: &[String],
    names: &BTreeSet<&String>,
) -> Result<Vec<String>, Error> {
    let answer = client.get("/v1/triggers", &Query::new()).await?;
    let list = |key: &str| answer[key].as_array().cloned().unwrap_or_default();
    let by_api = list("rules").into_iter();
    let by_api = by_api.filter(|rule| rule["defined_in"] == "api");
    let all = by_api.chain(list("unusable"));
    let others = all.map(|rule| show::value(&rule["rule"])).filter(|name| {
        let owner = name.split_once('/').map(|(owner, _)| owner.to_owned());
        owner.is_some_and(|owner| users.contains(&owner)) && !names.contains(name)
    });
    Ok(others.collect())
}

/// The rules of a file, with the texts of their scripts.
fn read(file: &Path, users: &[String]) -> Result<Vec<FileRule>, String> {
    let (text, folder) = match file.as_os_str() == "-" {
        true => {
            let mut text = String::new();
            let read = std::io::stdin().read_to_string(&mut text);
            read.map_err(|error| error.to_string())?;
            (text, Path::new(""))
        }
        false => {
            let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
            (text, file.parent().unwrap_or(Path::new("")))
        }
    };
    let mut table: toml::Table = toml::from_str(&text).map_err(|error| error.to_string())?;
    let rules = table.remove("rules");
    if let Some(key) = table.keys().next() {
        return Err(format!("{key}: unknown key; a file has [[rules]]"));
    }
    let rules = match rules {
        None => Vec::new(),
        Some(toml::Value::Array(rules)) => rules,
        Some(_) => return Err("rules: write [[rules]] above each rule".to_owned()),
    };
    let rules = rules.into_iter().enumerate();
    let rules = rules.map(|(place, rule)| {
        let rule = serde_json::to_value(rule).map_err(|error| error.to_string());
        rule.and_then(|rule| file_rule(rule, folder, users))
            .map_err(|problem| format!("rule {}: {problem}", place + 1))
    });
    rules.collect()
}

fn file_rule(mut rule: Value, folder: &Path, users: &[String]) -> Result<FileRule, String> {
    let name = rule["name"].as_str().ok_or("name: missing")?.to_owned();
    let owner = match (rule["owner"].as_str(), users) {
        (Some(owner), _) => owner,
        (None, [user]) => user.as_str(),
        (None, _) => return Err(format!("{name}: owner: name the user")),
    };
    let owner = owner.to_owned();
    let action = &mut rule["action"];
    if let Some(script) = action["submit"].as_str()
        && action["script"].is_null()
    {
        let path = folder.join(script);
        let text = std::fs::read_to_string(&path);
        let text =
            text.map_err(|error| format!("{name}: action.submit: {}: {error}", path.display()))?;
        action["script"] = text.into();
    }
    Ok(FileRule {
        name: format!("{owner}/{name}"),
        definition: rule,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> Result<Vec<FileRule>, String> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("plot.sh"), "#!/bin/sh\n").unwrap();
        let file = folder.path().join("rules.toml");
        std::fs::write(&file, text).unwrap();
        read(&file, &["alice".to_owned()])
    }

    #[test]
    fn a_script_is_read_beside_the_file_and_the_owner_is_the_caller() {
        let rules = written(
            "[[rules]]\nname = 'plot'\naction = { submit = 'plot.sh' }\n[[rules]]\nname = 'b'\nowner = 'bob'\naction = { publish = 'a.b' }\n",
        );
        let rules = rules.unwrap();
        let names: Vec<&str> = rules.iter().map(|rule| rule.name.as_str()).collect();
        assert_eq!(names, ["alice/plot", "bob/b"]);
        assert_eq!(rules[0].definition["action"]["script"], "#!/bin/sh\n");
        assert_eq!(rules[1].definition["action"], json!({ "publish": "a.b" }));
    }

    #[test]
    fn what_is_wrong_with_a_file_is_named() {
        for (text, problem) in [
            ("[[rule]]\nname = 'a'", "rule: unknown key"),
            ("rules = 1", "[[rules]]"),
            ("[[rules]]\non = {}", "rule 1: name: missing"),
            (
                "[[rules]]\nname = 'a'\naction = { submit = 'gone.sh' }",
                "rule 1: a: action.submit: ",
            ),
            ("[[rules]", "TOML"),
        ] {
            let Err(error) = written(text) else {
                panic!("{text}");
            };
            assert!(error.contains(problem), "{text}: {error}");
        }
        assert!(file_rule(json!({ "name": "a" }), Path::new(""), &[]).is_err());
    }
}
