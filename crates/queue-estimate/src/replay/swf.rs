//! Reads the Standard Workload Format: 18 columns, −1 means unknown, `;` begins a header or comment.
//! <https://www.cs.huji.ac.il/labs/parallel/workload/swf.html>

use std::io::Read as _;

use crate::queue::{Resources, Seconds};

use super::{Trace, TraceJob};

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is compressed, and damaged.
    #[error("decompress the trace")]
    Gzip(#[source] std::io::Error),
    /// It is not text.
    #[error("the trace is not UTF-8 text")]
    Text,
    /// A line has another form.
    #[error("line {line}: {expected} columns expected")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// Columns of a line.
        expected: usize,
    },
    /// The header lacks a column.
    #[error("the first line has no column {0}")]
    Column(&'static str),
    /// Neither the header nor the caller says how large the machine is.
    #[error("the header has neither MaxProcs nor MaxNodes: say how many processors there are")]
    Size,
    /// No job can be used.
    #[error("the trace has no job with a size and a run time")]
    Empty,
}

/// Time limit of jobs without one, before any other is known.
const DEFAULT_LIMIT: Seconds = 86_400;

/// Reads a trace, which may be gzipped. `processors` takes precedence over the header.
///
/// # Errors
/// If it has another form.
pub fn read(bytes: &[u8], processors: Option<i64>) -> Result<Trace, Error> {
    let mut unpacked = Vec::new();
    let bytes = if bytes.starts_with(&[0x1f, 0x8b]) {
        let mut decoder = flate2::read::MultiGzDecoder::new(bytes);
        decoder.read_to_end(&mut unpacked).map_err(Error::Gzip)?;
        &unpacked
    } else {
        bytes
    };
    let text = std::str::from_utf8(bytes).map_err(|_| Error::Text)?;
    let mut header = [None; 2];
    let mut jobs = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(comment) = line.strip_prefix(';') {
            for (place, name) in ["MaxProcs:", "MaxNodes:"].iter().enumerate() {
                if let Some(value) = comment.trim().strip_prefix(name) {
                    header[place] = value.trim().parse::<i64>().ok().filter(|value| *value > 0);
                }
            }
        } else if !line.is_empty() {
            let job = job(line).ok_or(Error::Line {
                line: number + 1,
                expected: 18,
            })?;
            jobs.extend(job);
        }
    }
    let size = processors.or(header[0]).or(header[1]).ok_or(Error::Size)?;
    if jobs.is_empty() {
        return Err(Error::Empty);
    }
    jobs.sort_by_key(|job: &TraceJob| job.eligible);
    // A job without a limit has the longest one that was seen before it.
    let mut longest = None;
    for job in &mut jobs {
        if job.limit > 0 {
            longest = longest.max(Some(job.limit));
        } else {
            job.limit = longest.unwrap_or(DEFAULT_LIMIT);
        }
    }
    Ok(Trace {
        capacity: Resources::cpus(size),
        jobs,
        group_age: 0,
        cut_at: None,
    })
}

/// A line's job. `Some(None)` if it says nothing about waiting.
fn job(line: &str) -> Option<Option<TraceJob>> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    if fields.len() != 18 {
        return None;
    }
    let number = |field: usize| {
        fields[field - 1]
            .parse::<f64>()
            .ok()
            .map(|value| value as i64)
    };
    let (submit, wait, run) = (number(2)?, number(3)?, number(4)?);
    let (allocated, requested, limit) = (number(5)?, number(8)?, number(9)?);
    let size = if allocated > 0 { allocated } else { requested };
    if size <= 0 || wait < 0 || submit < 0 {
        return Some(None);
    }
    let cancelled = run <= 0;
    Some(Some(TraceJob {
        id: fields[0].to_owned(),
        eligible: submit,
        left: Some(submit + wait),
        run: (!cancelled).then_some(run),
        cancelled,
        size: Resources::cpus(size),
        limit: limit.max(0),
        user: fields[11].to_owned(),
        partition: format!("{}/{}", fields[14], fields[15]),
        group: 0,
    }))
}
