//! Splits `scontrol -o show job` into records, although texts of users may contain forged ones.

use std::collections::HashMap;
use std::ops::Range;

use slurm_types::JobId;

const RECORD: &str = "\nJobId=";
pub(super) const NAME: &str = " JobName=";

/// The texts of one job that its user wrote, from squeue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FreeTexts {
    pub(crate) uid: Option<u32>,
    pub(crate) name: String,
    pub(crate) comment: String,
    pub(crate) command: String,
    pub(crate) work_dir: String,
}

/// Splits the output where a line begins with `JobId=<number> `. Exceptions are lines inside a known text of a user, and lines that name a
/// known job by another name than its own: newer records also contain the command line of their submission (`SubmitLine=`, 26.05.5, not
/// 24.11.5), which squeue does not report. An unknown newline stays inside its record. One pass: a user with many such jobs must not make
/// this slow.
pub(super) fn records(
    output: &str,
    texts: &HashMap<JobId, FreeTexts>,
) -> Vec<(JobId, Range<usize>)> {
    let mut records = Vec::new();
    let mut at = match record_id(output) {
        Some(_) => 0,
        None => next_record(output, 0).unwrap_or(output.len()),
    };
    while let Some(id) = record_id(&output[at..]) {
        let end = record_end(output, at, texts.get(&id), texts);
        records.push((id, at..end));
        at = end;
    }
    records
}

fn record_end(
    output: &str,
    start: usize,
    texts: Option<&FreeTexts>,
    all: &HashMap<JobId, FreeTexts>,
) -> usize {
    let mut from = start;
    let Some(texts) = texts else {
        return next_record(output, from).unwrap_or(output.len());
    };
    if let Some((head, rest)) = output[start..].split_once(NAME)
        && rest.starts_with(&texts.name)
    {
        from += head.len() + NAME.len() + texts.name.len();
    }
    let after_name = from;
    let forging = |places: &[(&str, &str)]| -> Vec<String> {
        let forging = places.iter().filter(|(_, text)| text.contains(RECORD));
        forging.map(|(key, text)| format!("{key}{text}")).collect()
    };
    let own = forging(&[
        (" Command=", &texts.command),
        (" WorkDir=", &texts.work_dir),
        (" Comment=", &texts.comment),
    ]);
    let repeated = forging(&[(" ", &texts.name), (" ", &texts.comment)]);
    loop {
        let Some(next) = next_record(output, from) else {
            return output.len();
        };
        let end_around = |forging: &[String]| {
            forging.iter().find_map(|text| {
                // A text may occur several times: this is the one around this line.
                let first =
                    output.ceil_char_boundary((next - text.len().min(next)).max(after_name));
                let window = &output[first..output.ceil_char_boundary(next + text.len())];
                let begin = first + window.find(text.as_str())?;
                let end = begin + text.len();
                (begin < next && next < end).then_some(end)
            })
        };
        from = match (end_around(&own), has_its_name(&output[next..], all)) {
            (Some(end), _) => end,
            (None, Some(true)) => return next,
            (None, Some(false)) => next,
            // That job is unknown; but a line inside the command line is not a record.
            (None, None) => match submit_line_begins(&output[after_name..next])
                .then(|| end_around(&repeated))
                .flatten()
            {
                Some(end) => end,
                None => return next,
            },
        };
    }
}

/// True if the record that seems to begin here has the name of its job; `None` if the job is unknown.
fn has_its_name(line: &str, all: &HashMap<JobId, FreeTexts>) -> Option<bool> {
    let texts = all.get(&record_id(line)?)?;
    let after = line
        .split_once(NAME)
        .filter(|(head, _)| !head.contains('\n'))
        .and_then(|(_, rest)| rest.strip_prefix(texts.name.as_str()));
    Some(after.is_some_and(follows_name))
}

/// True if this can follow a job's name: `SLUID=` (26.05 with `-d`, seen live), `HetJobIdSet=`, `UserId=`.
pub(super) fn follows_name(after: &str) -> bool {
    [" SLUID=", " HetJobIdSet=", " UserId="]
        .iter()
        .any(|key| after.starts_with(key))
}

fn submit_line_begins(record: &str) -> bool {
    record.contains(" SubmitLine=")
}

/// The ids of all lines that look like records.
pub(super) fn ids(output: &str) -> impl Iterator<Item = JobId> {
    let lines = output.match_indices(RECORD).map(|(at, _)| at + 1);
    let lines = std::iter::once(0).chain(lines);
    lines.filter_map(|at| record_id(&output[at..]))
}

/// Start of the next line that looks like a record.
fn next_record(output: &str, from: usize) -> Option<usize> {
    let lines = output[from..]
        .match_indices(RECORD)
        .map(|(at, _)| from + at + 1);
    lines
        .into_iter()
        .find(|at| record_id(&output[*at..]).is_some())
}

/// `JobId=123 ` at the start of a line.
fn record_id(line: &str) -> Option<JobId> {
    line.strip_prefix(&RECORD[1..])?
        .split_once(' ')?
        .0
        .parse()
        .ok()
}
