//! Times as Slurm prints them by default: without a zone. The caller reads them, because only they know the zone. They are replaced by Unix
//! seconds before the collectors' parsers, which ask Slurm for these, see the text.

use std::cell::Cell;
use std::ops::Range;

use chrono::{DateTime, NaiveDateTime, Utc};
use slurm_types::UnixTime;

use super::{InspectError, joined};
use crate::parse;

/// Reads a time that is not in Unix seconds, or says why it cannot.
pub type ReadTime<'a> = dyn Fn(&str) -> Result<DateTime<Utc>, String> + 'a;

/// How to ask for times that everybody reads the same.
pub(super) const ASK_SECONDS: &str =
    "SLURM_TIME_FORMAT=%s before the same command, which prints Unix seconds";

/// Times of `scontrol show job` that the collectors read.
const OF_JOBS: [&str; 11] = [
    "SubmitTime",
    "EligibleTime",
    "AccrueTime",
    "StartTime",
    "EndTime",
    "SuspendTime",
    "ResizeTime",
    "Deadline",
    "PreemptTime",
    "PreemptEligibleTime",
    "LastSchedEval",
];
/// Times of `scontrol show node` that the collectors read.
const OF_NODES: [&str; 3] = ["BootTime", "SlurmdStartTime", "LastBusyTime"];

/// The reader of one output, which knows whether a time had no zone.
pub(super) struct Times<'a> {
    read: &'a ReadTime<'a>,
    local: Cell<bool>,
}

impl<'a> Times<'a> {
    pub fn new(read: &'a ReadTime<'a>) -> Self {
        Self {
            read,
            local: Cell::new(false),
        }
    }

    /// True if a time without a zone was read.
    pub fn had_local(&self) -> bool {
        self.local.get()
    }

    /// The same time in Unix seconds. An unset time stays as it is.
    pub fn seconds(&self, printed: &str) -> Result<String, String> {
        let text = printed.trim();
        let is_seconds = text.parse::<i64>().is_ok_and(|seconds| seconds > 0);
        if is_seconds || UnixTime::is_unset(text) {
            return Ok(printed.to_owned());
        }
        let time = (self.read)(text)?;
        if NaiveDateTime::parse_from_str(text, "%Y-%m-%dT%H:%M:%S").is_ok() {
            self.local.set(true);
        }
        Ok(time.timestamp().to_string())
    }

    /// `scontrol show job`, with each record in one line and its times in seconds. Texts of users stay as they are.
    pub fn jobs(&self, text: &str) -> Result<String, InspectError> {
        let joined = joined(text);
        let mut edits = Vec::new();
        for (id, fields) in parse::own_fields(&joined) {
            for (key, value) in fields.into_iter().filter(|(key, _)| OF_JOBS.contains(key)) {
                let seconds = self.seconds(value).map_err(|problem| {
                    let line = line_of(text, &format!("JobId={id} "), &format!("{key}={value}"));
                    InspectError::new(line, format!("job {id}: {key}"), problem, ASK_SECONDS)
                })?;
                edits.push((place(&joined, value), seconds));
            }
        }
        Ok(edited(&joined, edits))
    }

    /// `scontrol show node` with its times in seconds.
    pub fn nodes(&self, text: &str) -> Result<String, InspectError> {
        let mut edits = Vec::new();
        let (mut is_free, mut is_reason) = (false, false);
        for (number, line) in text.lines().enumerate() {
            if line.starts_with("NodeName=") {
                (is_free, is_reason) = (false, false);
            }
            let end = match is_free {
                true => 0,
                false => parse::own_end(line),
            };
            let (own, tail) = line.split_at(end);
            is_free |= !tail.is_empty();
            let mut times = parse::pairs(own);
            times.retain(|(key, _)| OF_NODES.contains(key));
            if let Some(at) = tail.rfind(" Reason=") {
                is_reason = true;
                times.extend(reason_time(&tail[at..]).map(|time| ("Reason", time)));
            } else if is_reason {
                times.extend(reason_time(tail).map(|time| ("Reason", time)));
            }
            for (key, value) in times {
                let seconds = self
                    .seconds(value)
                    .map_err(|problem| InspectError::new(number + 1, key, problem, ASK_SECONDS))?;
                edits.push((place(text, value), seconds));
            }
        }
        Ok(edited(text, edits))
    }
}

/// The time in `bad disk [root@2026-11-20T20:35:09]`, which Slurm adds to a reason.
fn reason_time(text: &str) -> Option<&str> {
    let (_, by) = text.rsplit_once(" [")?;
    let (by, _) = by.split_once(']')?;
    by.rsplit_once('@').map(|(_, time)| time)
}

/// The line of a field, from that of its record on; 0 if it is in none.
fn line_of(text: &str, record: &str, field: &str) -> usize {
    let lines = text.lines().enumerate();
    let mut lines = lines.skip_while(|(_, line)| !line.starts_with(record));
    let found = lines.find(|(_, line)| line.contains(field));
    found.map_or(0, |(number, _)| number + 1)
}

/// Where a part of a text is in it.
fn place(text: &str, part: &str) -> Range<usize> {
    let start = part.as_ptr() as usize - text.as_ptr() as usize;
    start..start + part.len()
}

fn edited(text: &str, mut edits: Vec<(Range<usize>, String)>) -> String {
    edits.sort_by_key(|(place, _)| place.start);
    let mut edited = String::with_capacity(text.len());
    let mut at = 0;
    for (place, new) in edits {
        edited.push_str(&text[at..place.start]);
        edited.push_str(&new);
        at = place.end;
    }
    edited.push_str(&text[at..]);
    edited
}
