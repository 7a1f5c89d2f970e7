//! Parses the controller's records of all jobs, and the texts of users, without holding either: both are read through a window.

use std::collections::HashMap;
use std::io;

use slurm_types::JobId;

use super::cut::{FreeTexts, ids, records};
use super::delimited::{Separator, delimited};
use super::job::{Rejected, job};
use crate::JobRecord;
use crate::drift::Unread;
use crate::spill::Text;

/// Size of the window, unless a record is longer.
const WINDOW_BYTES: usize = 256 << 10;
/// Lookahead after the end of a record, in addition to a user's text: the begin of the next record, up to its name.
const LOOKAHEAD_BYTES: usize = 4 << 10;
/// Columns with the texts of users.
const COLUMNS: usize = 6;

/// Texts of users, by job.
#[derive(Debug)]
pub(crate) enum Texts {
    /// Of a few jobs.
    Few(HashMap<JobId, FreeTexts>),
    /// Of all jobs.
    All {
        /// squeue's output.
        text: Text,
        separator: Separator,
        /// Offset and length of each row, by job.
        rows: Vec<(JobId, usize, usize)>,
        /// Length of the longest row in bytes.
        longest: usize,
        /// Rows that could not be parsed.
        unread: Unread,
    },
}

impl Texts {
    /// Finds the rows of squeue's output; `None` if it does not have the requested columns.
    pub(crate) fn all(text: Text, separator: Separator) -> io::Result<Option<Self>> {
        let (mut rows, mut from, mut size) = (Vec::new(), 0, WINDOW_BYTES);
        let mut unread = Unread::default();
        while from < text.len() {
            let window = text.window(from, size)?;
            let is_last = from + window.len() == text.len();
            let end = match whole_rows(&window, &separator) {
                _ if is_last => window.len(),
                Some(end) => end,
                None => {
                    size *= 2;
                    continue;
                }
            };
            let Some(found) = delimited(&window[..end], &separator, COLUMNS) else {
                return Ok(None);
            };
            for row in found {
                let (Some(first), Some(last), Some((id, _))) =
                    (row.first(), row.last(), free_text(&row))
                else {
                    unread.note(&row.join("|"));
                    continue;
                };
                let begin = first.as_ptr() as usize - window.as_ptr() as usize;
                let end = last.as_ptr() as usize - window.as_ptr() as usize + last.len();
                rows.push((id, from + begin, end - begin));
            }
            (from, size) = (from + end, WINDOW_BYTES);
        }
        let longest = rows.iter().map(|(.., len)| *len).max().unwrap_or_default();
        rows.sort_by_key(|(id, ..)| *id);
        Ok(Some(Self::All {
            text,
            separator,
            rows,
            longest,
            unread,
        }))
    }

    /// The texts of these jobs, as far as they are known.
    fn of(&self, ids: impl Iterator<Item = JobId>) -> io::Result<HashMap<JobId, FreeTexts>> {
        let mut found = HashMap::new();
        for id in ids {
            if !found.contains_key(&id)
                && let Some(texts) = self.get(id)?
            {
                found.insert(id, texts);
            }
        }
        Ok(found)
    }

    fn get(&self, id: JobId) -> io::Result<Option<FreeTexts>> {
        match self {
            Self::Few(texts) => Ok(texts.get(&id).cloned()),
            Self::All {
                text,
                separator,
                rows,
                ..
            } => {
                let Ok(at) = rows.binary_search_by_key(&id, |(id, ..)| *id) else {
                    return Ok(None);
                };
                let (_, from, len) = rows[at];
                // The newline at the end of a row does not belong to the name.
                let row = text.window(from, len)? + "\n";
                let row =
                    delimited(&row, separator, COLUMNS).and_then(|rows| free_text(rows.first()?));
                Ok(row.map(|(_, texts)| texts))
            }
        }
    }

    /// Rows that could not be parsed.
    pub(crate) fn unread(&self) -> Unread {
        match self {
            Self::Few(_) => Unread::default(),
            Self::All { unread, .. } => unread.clone(),
        }
    }

    fn longest(&self) -> usize {
        match self {
            Self::Few(texts) => {
                let len = |texts: &FreeTexts| {
                    let texts = [&texts.name, &texts.comment, &texts.command, &texts.work_dir];
                    texts.map(String::len).into_iter().max().unwrap_or_default()
                };
                texts.values().map(len).max().unwrap_or_default()
            }
            Self::All { longest, .. } => *longest,
        }
    }
}

/// End of the last complete row in the window; `None` if there is none. A row ends at the last newline before the first separator of the
/// next one, see [`delimited`].
fn whole_rows(window: &str, separator: &Separator) -> Option<usize> {
    let separators: Vec<usize> = window
        .match_indices(separator.as_str())
        .map(|(at, _)| at)
        .collect();
    let whole = separators.len().checked_sub(1)? / (COLUMNS - 1);
    let next = separators[whole * (COLUMNS - 1)];
    (whole > 0)
        .then(|| window[..next].rfind('\n'))?
        .map(|at| at + 1)
}

/// A row of users' texts: id, uid, comment, command, working directory, name.
pub(crate) fn free_text(row: &[&str]) -> Option<(JobId, FreeTexts)> {
    let [id, uid, comment, command, work_dir, name] = row[..] else {
        return None;
    };
    let texts = FreeTexts {
        uid: uid.trim().parse().ok(),
        name: name.to_owned(),
        comment: unless_null(comment),
        command: unless_null(command),
        work_dir: unless_null(work_dir),
    };
    Some((id.trim().parse().ok()?, texts))
}

/// A user's text, unchanged including white space.
pub(super) fn unless_null(value: &str) -> String {
    if value == "(null)" {
        String::new()
    } else {
        value.to_owned()
    }
}

/// Parses every record of the output in order, as [`super::jobs`] does. The caller has to check for ids that occur twice.
pub(crate) fn long_jobs(
    output: &Text,
    texts: &Texts,
    each: impl FnMut(JobId, Result<JobRecord, Rejected>),
) -> io::Result<()> {
    jobs_by_window(output, texts, WINDOW_BYTES, each)
}

fn jobs_by_window(
    output: &Text,
    texts: &Texts,
    first_size: usize,
    mut each: impl FnMut(JobId, Result<JobRecord, Rejected>),
) -> io::Result<()> {
    let ahead = texts.longest() + LOOKAHEAD_BYTES;
    let (mut from, mut size) = (0, first_size + ahead);
    while from < output.len() {
        let window = output.window(from, size)?;
        let is_last = from + window.len() == output.len();
        let known = texts.of(ids(&window))?;
        let mut end = 0;
        for (id, range) in records(&window, &known) {
            // The following text might still show that the record continues.
            if !is_last && range.end + ahead > window.len() {
                break;
            }
            end = range.end;
            let line = window[range].trim_end_matches('\n');
            each(id, job(id, line, known.get(&id)));
        }
        if is_last {
            return Ok(());
        }
        match end {
            0 => size *= 2,
            _ => (from, size) = (from + end, first_size + ahead),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::parse::jobs;

    const TAIL: &str =
        "UserId=alice(20001) JobState=RUNNING SubmitTime=100 Network=(null) Command=";

    /// Texts that look like records, and like parts of them.
    fn text() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            Just("\nJobId=2 JobName=x UserId=root(0) JobState=COMPLETED SubmitTime=1".to_owned()),
            Just("\nJobId=3 ".to_owned()),
            Just(" UserId=root(0)".to_owned()),
            Just(" SubmitLine=sbatch".to_owned()),
            Just("\n".to_owned()),
            "[a-z\u{e4}]{0,40}",
        ];
        prop::collection::vec(piece, 0..4).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn a_window_reports_the_same_as_the_whole(
            of_users in prop::collection::vec((text(), text(), text()), 1..30),
            known in prop::collection::vec(any::<bool>(), 30),
            size in 1..2_000_usize,
        ) {
            let separator = Separator::random();
            let (mut output, mut squeue, mut few) = (String::new(), String::new(), HashMap::new());
            for (n, (name, command, comment)) in (1_u32..).zip(&of_users) {
                output += &format!("JobId={n} JobName={name} {TAIL}{command} WorkDir=/tmp Comment={comment} StdErr=e StdIn=i StdOut=o\n");
                if known[n as usize - 1] {
                    let columns = [&n.to_string(), "20001", comment, command, "/tmp", name];
                    squeue += &(separator.join(&columns) + "\n");
                    few.extend(free_text(&columns));
                }
            }
            let whole = jobs(&output, &few);
            let all = Texts::all(Text::from_text(&squeue), separator).unwrap().unwrap();
            for texts in [Texts::Few(few.clone()), all] {
                let (mut count, mut found) = (HashMap::<JobId, u32>::new(), Vec::new());
                jobs_by_window(&Text::from_text(&output), &texts, size, |id, record| {
                    *count.entry(id).or_default() += 1;
                    found.extend(record.ok());
                }).unwrap();
                found.retain(|record: &JobRecord| record.job_id.is_none_or(|id| count[&id] == 1));
                prop_assert_eq!(&found, &whole.records);
            }
        }
    }
}
