//! `smesh events`: lists the newest events, then follows.

use std::process::ExitCode;

use futures_util::StreamExt as _;
use serde_json::Value;

use crate::cli::{self, Filter, Global};
use crate::client::{Client, Query};
use crate::error::Error;
use crate::{settings, show};

/// Entries of one page.
const PAGE_SIZE: u32 = 500;

pub(super) async fn run(global: &Global, args: cli::Events) -> Result<ExitCode, Error> {
    let client = settings::client(global)?;
    let query = filter(global, &args.filter).query();
    if args.follow && args.filter.until.is_some() {
        return Err(Error::Usage("--follow never ends: omit --until".into()));
    }
    // Read before the list, so that no event falls in between. Events in both are shown once.
    let head = if args.follow { head(&client).await? } else { 0 };
    let mut last = 0;
    for entry in newest(&client, &query, args.limit).await? {
        last = entry["seq"].as_u64().unwrap_or(last);
        print(global, &entry)?;
    }
    if !args.follow {
        return Ok(ExitCode::SUCCESS);
    }
    follow(&client, query, head.max(last), |entry| {
        print(global, &entry).map(|()| None::<ExitCode>)
    })
    .await
}

fn print(global: &Global, entry: &Value) -> Result<(), Error> {
    if global.json {
        show::line(&entry["event"])
    } else {
        show::line(show::entry(entry))
    }
}

/// The filter as the API has it.
pub(super) fn filter(global: &Global, args: &Filter) -> ledger::domain::filter::Filter {
    ledger::domain::filter::Filter {
        cluster: global.cluster.clone(),
        types: args.r#type.clone(),
        job: args.job.as_ref().map(ToString::to_string),
        user: args.user.clone(),
        identity: args.identity.clone(),
        account: args.account.clone(),
        partition: args.partition.clone(),
        node: args.node.clone(),
        name: args.name.clone(),
        since: args.since,
        until: args.until,
        ..Default::default()
    }
}

/// Sequence of the newest entry.
pub(super) async fn head(client: &Client) -> Result<u64, Error> {
    let head = client.get("/v1/ledger/head", &Query::new()).await?;
    head["seq"]
        .as_u64()
        .ok_or_else(|| Error::Answer("no sequence in the head".into()))
}

/// The newest entries, oldest first.
async fn newest(client: &Client, query: &Query, limit: u32) -> Result<Vec<Value>, Error> {
    let mut entries: Vec<Value> = Vec::new();
    let mut cursor: Option<String> = None;
    let limit_rows = limit as usize;
    while entries.len() < limit_rows {
        let mut page = query.clone();
        page.push(("order", "desc".into()));
        page.push(("limit", PAGE_SIZE.min(limit).to_string()));
        page.extend(cursor.map(|cursor| ("cursor", cursor)));
        let mut answer = client.get("/v1/events", &page).await?;
        let Value::Array(found) = answer["entries"].take() else {
            return Err(Error::Answer("no entries".into()));
        };
        entries.extend(found);
        cursor = answer["next_cursor"].as_str().map(str::to_owned);
        if cursor.is_none() {
            break;
        }
    }
    entries.truncate(limit_rows);
    entries.reverse();
    Ok(entries)
}

/// Follows the ledger after a sequence until `each` returns a value. A broken connection is reopened at the last sequence.
pub(super) async fn follow<T>(
    client: &Client,
    query: Query,
    mut after: u64,
    mut each: impl FnMut(Value) -> Result<Option<T>, Error>,
) -> Result<T, Error> {
    let mut message = false;
    loop {
        let mut asked = query.clone();
        asked.push(("after", after.to_string()));
        match client.follow(&asked).await {
            Ok(mut entries) => {
                message = false;
                while let Some(Ok(entry)) = entries.next().await {
                    after = entry["seq"].as_u64().unwrap_or(after);
                    if let Some(found) = each(entry)? {
                        return Ok(found);
                    }
                }
            }
            Err(Error::Unreachable { address, reason }) => {
                if !message {
                    message = true;
                    anstream::eprintln!("waiting for slurm-mesh at {address}: {reason}");
                }
            }
            Err(error) => return Err(error),
        }
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
}

/// Gets an event of the ledger by its id.
pub(super) async fn recorded(client: &Client, id: &str) -> Result<Value, Error> {
    let query = vec![("id", id.to_owned())];
    let proof = client.get("/v1/ledger/proof/inclusion", &query).await?;
    let seq = proof["seq"].to_string();
    let query = vec![("from_seq", seq.clone()), ("to_seq", seq)];
    let mut page = client.get("/v1/events", &query).await?;
    match page["entries"][0]["event"].take() {
        Value::Null => Err(Error::Failed(format!(
            "no event {id}, or you may not see it"
        ))),
        event => Ok(event),
    }
}
