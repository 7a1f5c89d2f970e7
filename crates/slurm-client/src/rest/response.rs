//! Classifies HTTP responses.
//!
//! Seen on 22.05.8, 24.11.5 and 26.05.5. A missing token gives 401 in plain text; an invalid one 500 "Unspecified error" (22.05) or 511
//! with error 1007 (26.05). An unknown job gives 500 (22.05) or 404 with error 2017, on v0.0.36 an error without number. An unknown path
//! gives 404 in plain text. Without slurmctld 22.05 also returns "Unspecified error", after 9 s; without slurmdbd 200 with error 7000.

use super::{INVALID_JOB_ID, api::Family, http::Reply};
use crate::{
    Error,
    error::excerpt,
    json::{self, Envelope},
};

/// "Protocol authentication error".
const AUTHENTICATION: i64 = 1007;

/// A classified response.
#[derive(Debug)]
pub(super) enum Response {
    /// HTTP 200 and this body.
    Document(Vec<u8>),
    /// HTTP 304: nothing has changed.
    NotModified,
    /// Slurm knows no job with this id.
    NoSuchJob,
    /// The server does not have the path.
    NoSuchPath,
}

pub(super) fn classify(
    command: &'static str,
    family: Family,
    reply: Reply,
    with_token: bool,
) -> Result<Response, Error> {
    let status = reply.status;
    match status {
        200 => return Ok(Response::Document(reply.body)),
        304 => return Ok(Response::NotModified),
        _ => {}
    }
    let document = json::envelope(&reply.body).unwrap_or_default();
    let message = match document.errors.is_empty() {
        true => excerpt(String::from_utf8_lossy(&reply.body).trim()),
        false => document.error_text(),
    };
    let unknown_job = document.has_error(INVALID_JOB_ID) || message.contains("unknown job ");
    if unknown_job && matches!(status, 404 | 500) && command == super::JOB {
        return Ok(Response::NoSuchJob);
    }
    Err(match status {
        401 | 403 | 511 => Error::Denied {
            command,
            status,
            message,
        },
        404 if document.errors.is_empty() => return Ok(Response::NoSuchPath),
        502..=504 if document.errors.is_empty() => Error::RestDown {
            command,
            url: format!("HTTP {status}"),
            problem: message,
        },
        _ => sorted(command, family, status, &document, message, with_token),
    })
}

/// HTTP 200 with errors in the document.
pub(super) fn reported(command: &'static str, document: &Envelope) -> Error {
    let message = document.error_text();
    let family = match command {
        super::ACCOUNTING | super::ASSOCIATIONS | super::USERS | super::CLUSTERS => {
            Family::Accounting
        }
        _ => Family::Controller,
    };
    match sorted(command, family, 200, document, message, false) {
        Error::Failed { message, .. } => Error::Reported { command, message },
        found => found,
    }
}

fn sorted(
    command: &'static str,
    family: Family,
    status: u16,
    document: &Envelope,
    message: String,
    with_token: bool,
) -> Error {
    let by_number = document.has_error(AUTHENTICATION);
    match Error::from_output(
        command,
        i32::from(status),
        &message,
        family == Family::Accounting,
    ) {
        Error::MungeDown { message, .. } => Error::Denied {
            command,
            status,
            message,
        },
        _ if by_number => Error::Denied {
            command,
            status,
            message,
        },
        // 22.05 has no more specific message.
        Error::Failed { message, .. }
            if family == Family::Controller && message.contains("Unspecified error") =>
        {
            let hint = match with_token {
                true => {
                    "; or slurmctld refused the token, which Slurm 22.05 reports in the same way"
                }
                false => "",
            };
            Error::ControllerDown {
                command,
                message: format!("{message}{hint}"),
            }
        }
        found => found,
    }
}
