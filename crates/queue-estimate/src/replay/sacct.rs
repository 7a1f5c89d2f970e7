//! Reads the output of `sacct -aXP` with a header line. Times are `YYYY-MM-DDTHH:MM:SS` in the clock of the host that printed them.

use crate::queue::{Resources, Seconds};

use super::swf::Error;
use super::{Trace, TraceJob};

/// Time limit of jobs without one.
const UNLIMITED: Seconds = 365 * 86_400;

/// Reads a trace. `cpus` is the size of the machine; without it, the most that ran at the same time.
///
/// # Errors
/// If a column is missing, or a row has another number of them.
pub fn read(bytes: &[u8], cpus: Option<i64>) -> Result<Trace, Error> {
    let text = std::str::from_utf8(bytes).map_err(|_| Error::Text)?;
    let mut lines = text.lines().enumerate();
    let header: Vec<&str> = lines
        .next()
        .map_or(Vec::new(), |(_, line)| line.split('|').collect());
    let column = |name: &'static str| {
        let found = header.iter().position(|column| *column == name);
        found.ok_or(Error::Column(name))
    };
    let (id, user, partition) = (column("JobID")?, column("User")?, column("Partition")?);
    let (eligible, start, end) = (column("Eligible")?, column("Start")?, column("End")?);
    let (limit, cpu_count) = (column("Timelimit")?, column("NCPUS")?);
    let mut jobs = Vec::new();
    for (number, line) in lines.filter(|(_, line)| !line.is_empty()) {
        let fields: Vec<&str> = line.split('|').collect();
        if fields.len() != header.len() {
            return Err(Error::Line {
                line: number + 1,
                expected: header.len(),
            });
        }
        // Never eligible, or without a size: it did not wait for its turn.
        let Some(eligible) = time(fields[eligible]) else {
            continue;
        };
        let size = fields[cpu_count].parse().unwrap_or(0);
        if size <= 0 {
            continue;
        }
        let (start, end) = (time(fields[start]), time(fields[end]));
        let cancelled = start.is_none() && end.is_some();
        jobs.push(TraceJob {
            id: fields[id].to_owned(),
            eligible,
            left: start.or(end).map(|left| left.max(eligible)),
            run: start.zip(end).map(|(start, end)| (end - start).max(0)),
            cancelled,
            size: Resources::cpus(size),
            limit: duration(fields[limit]).unwrap_or(UNLIMITED),
            user: fields[user].to_owned(),
            partition: fields[partition].to_owned(),
            group: 0,
        });
    }
    if jobs.is_empty() {
        return Err(Error::Empty);
    }
    jobs.sort_by_key(|job| job.eligible);
    let capacity = cpus.unwrap_or_else(|| most_at_once(&jobs));
    Ok(Trace {
        capacity: Resources::cpus(capacity),
        jobs,
        group_age: 0,
        cut_at: None,
    })
}

fn most_at_once(jobs: &[TraceJob]) -> i64 {
    let started = jobs.iter().filter(|job| !job.cancelled);
    let mut changes: Vec<(Seconds, i64)> = started
        .filter_map(|job| {
            Some((
                job.left?,
                job.run.unwrap_or(Seconds::MAX / 4),
                job.size.0[0],
            ))
        })
        .flat_map(|(start, run, size)| [(start, size), (start + run, -size)])
        .collect();
    changes.sort_unstable();
    let mut used = 0;
    let used = changes.into_iter().map(|(_, change)| {
        used += change;
        used
    });
    used.max().unwrap_or(0).max(1)
}

/// `[D-]HH:MM:SS`. `None` for `UNLIMITED`, `Partition_Limit` and nothing.
fn duration(text: &str) -> Option<Seconds> {
    let (days, rest) = text.split_once('-').unwrap_or(("0", text));
    let parts = rest.split(':').map(|part| part.parse::<Seconds>().ok());
    let parts: Vec<Seconds> = parts.collect::<Option<_>>()?;
    let seconds = parts.iter().fold(0, |sum, part| sum * 60 + part);
    Some(days.parse::<Seconds>().ok()? * 86_400 + seconds)
}

/// `YYYY-MM-DDTHH:MM:SS` in seconds since 1970. `None` for `Unknown` and `None`.
fn time(text: &str) -> Option<Seconds> {
    let (date, clock) = text.split_once('T')?;
    let numbers = date.split('-').map(|part| part.parse::<i64>().ok());
    let [year, month, day] = numbers.collect::<Option<Vec<_>>>()?.try_into().ok()?;
    // Days from civil (Hinnant): years begin in March.
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    Some(days * 86_400 + duration(clock)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_sacct() {
        let text = "JobID|User|Partition|Eligible|Start|End|Timelimit|NCPUS|State
7|a|cpu|2026-03-01T00:00:00|2026-03-01T00:01:40|2026-03-01T01:01:40|1-02:00:00|4|COMPLETED
8|b|cpu|2026-03-01T00:00:10|Unknown|2026-03-01T00:10:10|UNLIMITED|2|CANCELLED by 1
9|b|cpu|2026-03-01T00:00:20|2026-03-01T00:02:00|Unknown|01:30:00|6|RUNNING
10|b|cpu|Unknown|Unknown|Unknown|01:30:00|6|PENDING
";
        let trace = read(text.as_bytes(), None).expect("readable");
        assert_eq!(trace.capacity, Resources::cpus(10));
        let rows: Vec<_> = trace
            .jobs
            .iter()
            .map(|job| {
                (
                    job.left.map(|left| left - job.eligible),
                    job.run,
                    job.cancelled,
                    job.limit,
                )
            })
            .collect();
        assert_eq!(
            rows,
            [
                (Some(100), Some(3_600), false, 93_600),
                (Some(600), None, true, UNLIMITED),
                (Some(100), None, false, 5_400),
            ]
        );
        assert_eq!(time("1970-01-02T00:00:01"), Some(86_401));
        assert!(matches!(
            read(b"JobID|User", None),
            Err(Error::Column("Partition"))
        ));
    }
}
