//! Cuts `scontrol -o show job` into records, although texts of users may hold what looks like one.

use std::collections::HashMap;

use slurm_types::JobId;

use super::job::{FreeTexts, NAME};

const RECORD: &str = "\nJobId=";

/// Cuts the answer where a line begins with `JobId=<number> `, unless that line is inside a text known to be a user's. A
/// newline nobody knew of stays inside its record. One pass: a user with many such jobs must not make this slow.
pub(super) fn records<'a>(
    output: &'a str,
    texts: &HashMap<JobId, FreeTexts>,
) -> Vec<(JobId, &'a str)> {
    let mut records = Vec::new();
    let mut at = match record_id(output) {
        Some(_) => 0,
        None => next_record(output, 0).unwrap_or(output.len()),
    };
    while let Some(id) = record_id(&output[at..]) {
        let end = record_end(output, at, texts.get(&id));
        records.push((id, output[at..end].trim_end_matches('\n')));
        at = end;
    }
    records
}

fn record_end(output: &str, start: usize, texts: Option<&FreeTexts>) -> usize {
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
    let forging: Vec<String> = [
        (" Command=", &texts.command),
        (" WorkDir=", &texts.work_dir),
        (" Comment=", &texts.comment),
    ]
    .into_iter()
    .filter(|(_, value)| value.contains(RECORD))
    .map(|(key, value)| format!("{key}{value}"))
    .collect();
    loop {
        let Some(next) = next_record(output, from) else {
            return output.len();
        };
        let around = forging.iter().find_map(|text| {
            let window = &output[after_name..output.ceil_char_boundary(next + text.len())];
            let begin = after_name + window.find(text.as_str())?;
            let end = begin + text.len();
            (begin < next && next < end).then_some(end)
        });
        match around {
            Some(end) => from = end,
            None => return next,
        }
    }
}

/// Where the next line begins that looks like a record.
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
