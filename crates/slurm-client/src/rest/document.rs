//! Checks of a response's contents: truncated, with errors despite HTTP 200, without its list.

use serde_json::Value;

use super::{ACCOUNTING, response};
use crate::{
    Error,
    drift::Unread,
    error::excerpt,
    json::{self, Answer, Envelope},
    metrics,
};

/// Parses a document in a blocking thread: a long one takes a second.
pub(super) async fn documented<T: Send + 'static>(
    command: &'static str,
    body: Vec<u8>,
    list: &'static str,
    read: impl FnMut(&Value) -> T + Send + 'static,
) -> Result<(Vec<T>, Envelope), Error> {
    let parse = move || match json::answer(&body, list, read) {
        Ok(answer) => Ok(answer),
        Err(error) => Err(unreadable(command, &body, &error)),
    };
    let parsed = tokio::task::spawn_blocking(parse).await;
    let answer: Answer<T> = parsed
        .unwrap_or_else(|_| {
            Err(Error::Suspicious {
                command,
                problem: "the answer was interrupted",
            })
        })
        .inspect_err(|error| metrics::failed(command, error.kind()))?;
    let Answer { envelope, items } = answer;
    let empty = items.as_ref().is_none_or(Vec::is_empty);
    let harmless = command == ACCOUNTING && empty && envelope.has_error(json::NOTHING_FOUND);
    if !envelope.errors.is_empty() && !harmless {
        let error = response::reported(command, &envelope);
        metrics::failed(command, error.kind());
        return Err(error);
    }
    let items = items.ok_or_else(|| nothing(command))?;
    Ok((items, envelope))
}

pub(super) fn envelope(command: &'static str, body: &[u8]) -> Result<Envelope, Error> {
    json::envelope(body).map_err(|error| unreadable(command, body, &error))
}

pub(super) fn unreadable(command: &'static str, body: &[u8], error: &serde_json::Error) -> Error {
    if error.is_eof() {
        return Error::Suspicious {
            command,
            problem: "the document is incomplete: the answer was truncated",
        };
    }
    Error::Malformed {
        command,
        problem: "not a document of slurmrestd",
        excerpt: excerpt(&format!(
            "{error}; {}",
            String::from_utf8_lossy(&body[..body.len().min(400)])
        )),
    }
}

/// Error for a response without the requested data.
pub(super) fn nothing(command: &'static str) -> Error {
    let error = Error::Suspicious {
        command,
        problem: "it is empty although it reports success",
    };
    metrics::failed(command, error.kind());
    error
}

/// Wraps a parser: for an item that it rejects, the error holds the item's field names, which are Slurm's own.
pub(super) fn or_keys<T>(
    mut read: impl FnMut(&Value) -> Option<T>,
) -> impl FnMut(&Value) -> Result<T, String> {
    move |value| {
        read(value).ok_or_else(|| match value {
            Value::Object(fields) => {
                let names: Vec<&str> = fields.keys().map(String::as_str).collect();
                format!("{{{}}}", names.join(" "))
            }
            other => other.to_string(),
        })
    }
}

/// The parsed records, and those that could not be parsed.
pub(super) fn read_rows<T>(records: Vec<Result<T, String>>) -> (Vec<T>, Unread) {
    let mut unread = Unread::default();
    let rows = records
        .into_iter()
        .filter_map(|record| record.map_err(|keys| unread.note(&keys)).ok())
        .collect();
    (rows, unread)
}

/// The records, if all were parsed.
pub(super) fn complete<T>(
    command: &'static str,
    records: Vec<Result<T, String>>,
) -> Result<Vec<T>, Error> {
    let (rows, unread) = read_rows(records);
    metrics::unread(command, unread.count);
    match unread.count {
        0 => Ok(rows),
        _ => Err(Error::Malformed {
            command,
            problem: "a record could not be read",
            excerpt: unread.first,
        }),
    }
}
