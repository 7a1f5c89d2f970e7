//! `/v1/events/export`: all selected entries as NDJSON or CSV, in constant memory.
//!
//! If the ledger becomes unreadable during the export, the connection is aborted. So a client
//! cannot mistake a partial export for a complete one.

use std::io;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures_util::stream;
use mesh_runtime::api::{AuditedRead, AuditedStream, Caller, Problem};

use super::csv::Table;
use super::fields::Fields;
use super::pages::Pages;
use super::params::{self, Params};
use super::rest::{line, problem};
use super::{Entry, EventsApi, count, json, responses};
use crate::domain::filter::Filter;

/// Output format of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// JSON, with one entry per line.
    Ndjson,
    /// CSV with a header.
    Csv,
}

/// Exports all matching entries up to the current end of the ledger, oldest first.
///
/// If the export cannot be completed, the connection is aborted.
#[utoipa::path(
    get, path = "/v1/events/export", operation_id = "exportEvents", tag = "events",
    params(
        Filter,
        ("category" = Option<String>, Query, description = params::CATEGORY),
        ("format" = Option<String>, Query, description = "`ndjson`: one JSON entry per line; `csv`: a table with a header. Default: `ndjson`"),
        ("fields" = Option<String>, Query, description = params::FIELDS),
    ),
    responses(
        (status = 200, description = "The entries", content(
            (String = "application/x-ndjson"), (String = "text/csv")
        )),
        (status = 400, response = responses::BadRequest), (status = 401, response = responses::Unauthorized), (status = 403, response = responses::Forbidden),
        (status = 503, response = responses::Unavailable),
    )
)]
pub(super) async fn export<A: EventsApi>(
    State(api): State<Arc<A>>,
    caller: Caller,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let mut params = Params::of(query.as_deref())?;
    let format = params
        .choice(
            "format",
            &[("ndjson", Format::Ndjson), ("csv", Format::Csv)],
        )?
        .unwrap_or(Format::Ndjson);
    let fields = params.fields()?;
    let filter = params.filter("format, fields")?;
    let pages = Pages::begin(api, caller.clone(), filter).await;
    let pages = pages.map_err(problem)?;
    let writer = RowWriter::new(format, fields);
    let (kind, name) = match format {
        Format::Ndjson => ("application/x-ndjson", "events.ndjson"),
        Format::Csv => ("text/csv; charset=utf-8; header=present", "events.csv"),
    };
    let mut first = writer.header()?;
    if pages.is_done() {
        return Ok(answer(
            kind,
            name,
            Body::from(first),
            AuditedRead::nothing(),
        ));
    }
    let (audited_read, counts) = AuditedRead::to(&caller).stream();
    let mut texts = ExportBody {
        pages,
        writer,
        counts,
    };
    // Reads the first page before responding, so that errors of the request still get a status
    // code.
    first.extend(texts.next().await?.unwrap_or_default());
    let rest = stream::try_unfold(texts, async |mut texts| {
        let text = texts
            .next()
            .await
            .map_err(|problem| io::Error::other(problem.detail))?;
        Ok::<_, io::Error>(text.map(|text| (Bytes::from(text), texts)))
    });
    let first = stream::iter([Ok(Bytes::from(first))]);
    let body = Body::from_stream(futures_util::StreamExt::chain(first, rest));
    Ok(answer(kind, name, body, audited_read))
}

fn answer(kind: &'static str, name: &str, body: Body, audited_read: AuditedRead) -> Response {
    let headers = [
        (CONTENT_TYPE, kind.to_owned()),
        (
            CONTENT_DISPOSITION,
            format!("attachment; filename=\"{name}\""),
        ),
    ];
    (audited_read.extension(), headers, body).into_response()
}

/// Writes an export page by page.
struct ExportBody<A> {
    pages: Pages<A>,
    writer: RowWriter,
    counts: AuditedStream,
}

impl<A: EventsApi> ExportBody<A> {
    /// Returns the text of the next page, or `None` after the last.
    async fn next(&mut self) -> Result<Option<Vec<u8>>, Problem> {
        let Some(entries) = self.pages.next().await.map_err(problem)? else {
            return Ok(None);
        };
        let mut text = Vec::new();
        for entry in &entries {
            self.writer.write(entry, &mut text)?;
            count(&self.counts, &entry.content);
        }
        Ok(Some(text))
    }
}

enum RowWriter {
    Ndjson(Option<Fields>),
    Csv(Table),
}

impl RowWriter {
    fn new(format: Format, fields: Option<Fields>) -> Self {
        match format {
            Format::Ndjson => Self::Ndjson(fields),
            Format::Csv => Self::Csv(Table::new(fields)),
        }
    }

    fn header(&self) -> Result<Vec<u8>, Problem> {
        match self {
            Self::Ndjson(_) => Ok(Vec::new()),
            Self::Csv(table) => table.header(),
        }
    }

    fn write(&self, found: &Entry, text: &mut Vec<u8>) -> Result<(), Problem> {
        match self {
            Self::Ndjson(fields) => {
                let value = json::chosen(found, fields.as_ref())?;
                text.extend(line(&value).into_bytes());
                Ok(())
            }
            Self::Csv(table) => table.write(found, text),
        }
    }
}
