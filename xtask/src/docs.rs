//! Generated parts of `docs/`: the text between `<!-- generated:NAME -->` and `<!-- /generated -->` comes from the catalogue.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use mesh_events::catalogue::{
    BUCKETS, CONSUMERS, MESH_REPLAY, ROLES, SLURM_EVENTS, STREAMS, account, dispatcher_consumers,
    permissions,
};
use mesh_events::{Category, EventType, FactKind};

use crate::markdown::row;

/// Generated files and their content.
pub fn files(root: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let events = [("event-types", event_types()), ("subjects", subjects())];
    let bus = [
        ("streams", streams()),
        ("consumers", consumers()),
        ("buckets", buckets()),
        ("roles", roles()?),
    ];
    let folder = root.join("docs/reference");
    Ok(BTreeMap::from([
        with_parts(folder.join("events.md"), &events)?,
        with_parts(folder.join("bus.md"), &bus)?,
        (
            folder.join("configuration.md"),
            crate::configuration::page(root)?,
        ),
    ]))
}

/// A page with its generated parts.
fn with_parts(path: PathBuf, parts: &[(&str, String)]) -> Result<(PathBuf, String)> {
    let text =
        std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let text = parts
        .iter()
        .try_fold(text, |text, (name, part)| replace(&text, name, part))?;
    Ok((path, text))
}

/// Replaces the text between the marks by a table.
pub fn replace(text: &str, name: &str, table: &str) -> Result<String> {
    let begin = format!("<!-- generated:{name} -->\n");
    let end = "<!-- /generated -->";
    let Some((before, rest)) = text.split_once(&begin) else {
        bail!("the document has no mark {begin:?}");
    };
    let Some((_, after)) = rest.split_once(end) else {
        bail!("the part {name:?} has no end mark");
    };
    Ok(format!("{before}{begin}{table}{end}{after}"))
}

fn event_types() -> String {
    let mut table = String::from("| type | identity | meaning |\n| --- | --- | --- |\n");
    for kind in EventType::ALL {
        let identity = match kind.identity() {
            FactKind::Recorded => "recorded",
            FactKind::Sampled => "sampled",
            FactKind::Derived => "derived",
            FactKind::SampledOrDerived => "sampled or derived",
        };
        row(
            &mut table,
            &[&format!("`{kind}`"), identity, kind.summary()],
        );
    }
    table
}

fn subjects() -> String {
    let mut table = String::from("| category | events |\n| --- | --- |\n");
    for category in Category::ALL {
        let events: Vec<_> = EventType::ALL
            .iter()
            .filter(|kind| kind.category() == category)
            .map(|kind| format!("`{}`", kind.event()))
            .collect();
        row(
            &mut table,
            &[&format!("`{}`", category.as_str()), &events.join(" ")],
        );
    }
    table
}

fn streams() -> String {
    let mut table = String::from(
        "| stream | subjects | kept | when full | for |\n| --- | --- | --- | --- | --- |\n",
    );
    for stream in STREAMS {
        let days = stream.max_age.as_secs() / 86_400;
        let retention = if stream.work_queue {
            format!("until acknowledged, {days} days at most")
        } else {
            format!("{days} days")
        };
        let full = format!("refuses above {} GiB", stream.max_bytes >> 30);
        let subjects = stream.subjects.join(", ");
        let cells = [
            &format!("`{}`", stream.name),
            &format!("`{subjects}`"),
            &retention,
            &full,
            stream.summary,
        ];
        row(&mut table, &cells);
    }
    table
}

fn consumers() -> String {
    let mut table = String::from(
        "| stream | durable consumer | filter | ack wait | unanswered at most |\n| --- | --- | --- | --- | --- |\n",
    );
    for consumer in CONSUMERS {
        let filter = if consumer.filters.is_empty() {
            "all".to_owned()
        } else {
            let filters = consumer.filters_of("<cluster>");
            format!("`{}`", filters.join("` `"))
        };
        let each = if consumer.per_cluster {
            "-<cluster>"
        } else {
            ""
        };
        let cells = [
            &format!("`{}`", consumer.stream),
            &format!("`{}{each}`", consumer.name),
            &filter,
            &format!("{} s", consumer.ack_wait.as_secs()),
            &consumer.max_ack_pending.to_string(),
        ];
        row(&mut table, &cells.map(String::as_str));
    }
    for (stream, consumer, filter, which) in [
        (
            SLURM_EVENTS,
            "`webhook-dispatcher-…`",
            "all",
            "one per webhook-dispatcher at work, not durable, nothing is acknowledged: positions of endpoints are in its database",
        ),
        (
            MESH_REPLAY,
            "`webhook-dispatcher-…`",
            "`mesh.replay.*.webhook.*.slurm.>`",
            "one per webhook-dispatcher at work, headers only, gone a minute after it: it learns of replays by it",
        ),
    ] {
        row(
            &mut table,
            &[&format!("`{stream}`"), consumer, filter, "–", which],
        );
    }
    table
}

fn buckets() -> String {
    let mut table = String::from("| bucket | for |\n| --- | --- |\n");
    for bucket in BUCKETS {
        row(&mut table, &[&format!("`{}`", bucket.name), bucket.summary]);
    }
    table
}

fn placeholders(subject: &str) -> String {
    let name = dispatcher_consumers().find(|name| subject.split('.').any(|token| token == name));
    let subject = match name {
        Some(name) => subject.replace(&name, "webhook-dispatcher-<digit>"),
        None => subject.to_owned(),
    };
    subject.replace("CLUSTER", "<cluster>")
}

fn roles() -> Result<String> {
    let mut text = String::new();
    for role in ROLES {
        let rights =
            permissions(role, "CLUSTER").with_context(|| format!("role {role} has no rights"))?;
        let account = account(role, "CLUSTER");
        write!(
            text,
            "### `{role}`\n\n- account: `{}`\n",
            placeholders(&account)
        )?;
        for (may, subjects) in [
            ("publishes", &rights.publish),
            ("subscribes", &rights.subscribe),
        ] {
            let mut subjects: Vec<_> = subjects
                .iter()
                .map(|subject| format!("`{}`", placeholders(subject)))
                .collect();
            // Once for all names of a dispatcher's consumers.
            let mut listed = BTreeSet::new();
            subjects.retain(|subject| listed.insert(subject.clone()));
            if !subjects.is_empty() {
                writeln!(text, "- {may}: {}", subjects.join(" "))?;
            }
        }
        text.push('\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_test_named_for_a_trap_exists() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        let text = std::fs::read_to_string(root.join("docs/internals/traps.md")).unwrap();
        let named = text.split('`').filter_map(|part| part.split_once(".rs::"));
        let mut count = 0;
        for (file, test) in named {
            let path = root.join(format!("{file}.rs"));
            let code = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(
                code.contains(&format!("fn {test}(")),
                "{path:?} has no {test}"
            );
            count += 1;
        }
        assert!(count > 20, "{count}");
    }
}
