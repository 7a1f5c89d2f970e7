//! Subjects of events and doorbells.
//!
//! External names (users, partitions, nodes) become one subject token each, reversibly: bytes outside `[A-Za-z0-9-]` are written `_XX`
//! (hexadecimal, upper case), an absent name is `_`. Permissions are granted per user and partition, so two names never share a token.

use crate::proto::mesh::event::v1::{Event, event::Payload};
use crate::{Category, UnknownEventType, hooks};

/// The subject token of a name; `_` for an empty one.
pub fn token(name: &str) -> String {
    if name.is_empty() {
        return "_".to_owned();
    }
    let mut token = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || byte == b'-' {
            token.push(char::from(byte));
        } else {
            token.push_str(&format!("_{byte:02X}"));
        }
    }
    token
}

/// A token that [`token`] never produces.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a subject token")]
pub struct InvalidToken(String);

/// Decodes a token to the name.
///
/// # Errors
/// If the token is not exactly what [`token`] writes for some name.
pub fn name(text: &str) -> Result<String, InvalidToken> {
    let invalid = || InvalidToken(text.to_owned());
    if text == "_" {
        return Ok(String::new());
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'_' {
            let hex = [
                rest.next().ok_or_else(invalid)?,
                rest.next().ok_or_else(invalid)?,
            ];
            let mut decoded = [0];
            hex::decode_to_slice(hex, &mut decoded).map_err(|_| invalid())?;
            bytes.extend(decoded);
        } else {
            bytes.push(byte);
        }
    }
    let name = String::from_utf8(bytes).map_err(|_| invalid())?;
    if token(&name) == text {
        Ok(name)
    } else {
        Err(invalid())
    }
}

/// Subject of an event.
///
/// # Errors
/// If the event's type is not in the catalogue.
pub fn of(event: &Event) -> Result<String, UnknownEventType> {
    let kind = event.kind()?;
    let job = event.job();
    let user = event.owner.as_ref().map_or("", |owner| &owner.user);
    let names: [&str; 2] = match kind.category() {
        Category::Job | Category::Queue => [job.map_or("", |job| &job.partition), user],
        Category::Cost => [
            event.owner.as_ref().map_or("", |owner| &owner.account),
            user,
        ],
        Category::Node => [event.entity_key().trim_start_matches("node/"), ""],
        Category::User => match &event.payload {
            Some(Payload::User(payload)) => [&payload.user, ""],
            _ => [user, ""],
        },
        Category::Capture => match &event.payload {
            Some(Payload::Capture(payload)) => [&payload.source, ""],
            _ => ["", ""],
        },
    };
    let mut subject = format!(
        "slurm.{}.{}.{}.{}",
        token(&event.cluster),
        kind.category().as_str(),
        kind.event(),
        token(names[0])
    );
    if matches!(
        kind.category(),
        Category::Job | Category::Queue | Category::Cost
    ) {
        subject.push('.');
        subject.push_str(&token(names[1]));
    }
    Ok(subject)
}

/// Subject of a hook's doorbell. An unknown name is published as [`hooks::OTHER_HOOK`], so that a consumer receives it.
pub fn doorbell(cluster: &str, hook: &str) -> String {
    let hook = hooks::canonical_name(hook).unwrap_or(hooks::OTHER_HOOK);
    format!("mesh.{}.hook.{}", token(cluster), token(hook))
}

/// Subject of the checkpoints of a ledger.
pub fn checkpoint(origin: &str) -> String {
    format!("mesh.checkpoint.{}", token(origin))
}

/// Subject of the order in which a ledger appended its entries.
pub fn order(origin: &str) -> String {
    format!("mesh.order.{}", token(origin))
}

/// Subject of a replayed event: for every reader, or for one webhook endpoint.
pub fn replay(id: &str, endpoint: Option<&str>, original: &str) -> String {
    let id = token(id);
    match endpoint {
        None => format!("mesh.replay.{id}.{original}"),
        Some(endpoint) => format!("mesh.replay.{id}.webhook.{}.{original}", token(endpoint)),
    }
}

/// Subjects of every replay for any webhook endpoint.
pub const ENDPOINT_REPLAY_SUBJECTS: &str = "mesh.replay.*.webhook.*.slurm.>";

/// Subjects of every replay for a webhook endpoint.
pub fn replays_for(endpoint: &str) -> String {
    format!("mesh.replay.*.webhook.{}.>", token(endpoint))
}

/// The parts of a replay's subject: the replay's id, its endpoint, and the subject of the original.
pub fn replayed(subject: &str) -> Option<(String, Option<String>, &str)> {
    let (id, rest) = subject.strip_prefix("mesh.replay.")?.split_once('.')?;
    let id = name(id).ok()?;
    match rest.strip_prefix("webhook.") {
        None => Some((id, None, rest)),
        Some(rest) => {
            let (endpoint, original) = rest.split_once('.')?;
            Some((id, Some(name(endpoint).ok()?), original))
        }
    }
}

/// Subject of an event from outside.
pub fn incoming(cluster: &str, source: &str) -> String {
    format!("mesh.{}.in.{}", token(cluster), token(source))
}

/// Cluster and source of a message that its sender published itself, in its own form.
pub fn raw_source(subject: &str) -> Option<(String, String)> {
    let (cluster, source) = subject.strip_prefix("mesh.")?.split_once(".raw.")?;
    Some((name(cluster).ok()?, name(source).ok()?))
}

/// Subject of an audit entry.
pub fn audit(cluster: &str, kind: &str) -> String {
    format!("mesh.{}.audit.{}", token(cluster), token(kind))
}

/// Subject of messages that a service could not process.
pub fn dead(service: &str) -> String {
    format!("mesh.dead.{}", token(service))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn names_come_back(original in "\\PC{0,24}") {
            let token = token(&original);
            prop_assert!(token.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'));
            prop_assert_eq!(name(&token), Ok(original));
        }

        #[test]
        fn different_names_have_different_tokens(a in ".{0,8}", b in ".{0,8}") {
            prop_assert_eq!(token(&a) == token(&b), a == b);
        }

        #[test]
        fn any_token_is_decoded_exactly_or_refused(text in "[A-Za-z0-9_.-]{0,12}") {
            if let Ok(name) = name(&text) {
                prop_assert_eq!(token(&name), text);
            }
        }
    }

    #[test]
    fn the_parts_of_a_replays_subject_come_back() {
        let original = "slurm.c.job.started.cpu.alice";
        let id = "0b7e1a52-5f5a-4c1e-9d3b-0c6f0f2b7a11";
        for endpoint in [None, Some("ci.example"), Some("slurm")] {
            let subject = replay(id, endpoint, original);
            let parts = (id.to_owned(), endpoint.map(str::to_owned), original);
            assert_eq!(replayed(&subject), Some(parts), "{subject}");
        }
        for other in [original, "mesh.replay.x", "mesh.replay.x.webhook.y"] {
            assert_eq!(replayed(other), None, "{other}");
        }
    }

    #[test]
    fn separators_and_wildcards_do_not_survive() {
        assert_eq!(token("a.b*>_ü"), "a_2Eb_2A_3E_5F_C3_BC");
        assert_eq!(
            doorbell("my.cluster", "PrologSlurmctld"),
            "mesh.my_2Ecluster.hook.PrologSlurmctld"
        );
    }
}
