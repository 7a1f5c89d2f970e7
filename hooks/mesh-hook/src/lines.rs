//! Lines that Slurm's Lua plugins append to a file. The plugins must not start a process or open a socket.
//!
//! Format of a line: `1 KIND SECONDS USER JOB[ PROBE]`. KIND is `submit`, `modify` (job_submit.lua) or `cli` (cli_filter.lua), USER a
//! name or uid, JOB an id or `-`.
//! Users may write into cli_filter's file, so its content is not trusted: a line only triggers a poll.
//! Where the files may be, so that they fill no disk and wait for none: [`filesystem`] and ADR 16.

mod filesystem;
mod folder;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::hook::v1::Doorbell;
use uuid::Uuid;

pub use filesystem::Error;
pub use folder::{Folder, PendingLines, Source, USERS};

/// Folder of the lines if the configuration names none.
pub const DEFAULT_FOLDER: &str = "/run/slurm-mesh/lines";

/// Most jobs per file that get their own doorbell. One doorbell for a poll of all jobs covers the others.
const MAX_JOBS: usize = 512;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Line<'a> {
    hook: &'static str,
    at: SystemTime,
    user: &'a str,
    job_id: u32,
    probe: Option<Uuid>,
}

fn parse(text: &str) -> Option<Line<'_>> {
    let mut fields = text.split(' ');
    if fields.next()? != "1" {
        return None;
    }
    let hook = match fields.next()? {
        "submit" | "modify" => "JobSubmit",
        "cli" => "CliFilter",
        _ => return None,
    };
    let seconds: u32 = fields.next()?.parse().ok()?;
    let user = fields.next().filter(|user| user.len() <= 64)?;
    let job_id = match fields.next()? {
        "-" => 0,
        id => id.parse().ok()?,
    };
    let probe = fields.next().map(Uuid::parse_str).transpose().ok()?;
    Some(Line {
        hook,
        at: UNIX_EPOCH + Duration::from_secs(seconds.into()),
        user,
        job_id,
        probe,
    })
}

/// Builds the doorbells of some lines: one per job, and one for all submissions whose job has no id yet.
pub fn doorbells(cluster: &str, host: &str, text: &str) -> Vec<Doorbell> {
    let doorbell = |line: &Line<'_>| Doorbell {
        id: line.probe.unwrap_or_else(Uuid::now_v7).to_string(),
        hook: line.hook.to_owned(),
        cluster: cluster.to_owned(),
        host: host.to_owned(),
        called_at: Some(mesh_events::timestamp(DateTime::<Utc>::from(line.at))),
        job_id: line.job_id,
        user: line.user.to_owned(),
        probe: line.probe.is_some(),
        ..Doorbell::default()
    };
    let (probes, lines): (Vec<_>, Vec<_>) = text
        .lines()
        .filter_map(parse)
        .partition(|line| line.probe.is_some());
    let mut jobs: BTreeMap<(u32, &str), Line<'_>> = BTreeMap::new();
    for line in lines {
        let fits = jobs.len() < MAX_JOBS || jobs.contains_key(&(line.job_id, line.hook));
        let job_id = if fits { line.job_id } else { 0 };
        // A doorbell without a job requests a poll of all jobs. Only a submission may do that.
        let hook = if job_id == 0 { "JobSubmit" } else { line.hook };
        jobs.insert(
            (job_id, hook),
            Line {
                job_id,
                hook,
                ..line
            },
        );
    }
    jobs.values()
        .chain(probes.iter().take(MAX_JOBS))
        .map(doorbell)
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed_doorbells(text: &str) -> Vec<(String, u32, String)> {
        doorbells("c", "h", text)
            .into_iter()
            .map(|doorbell| (doorbell.hook, doorbell.job_id, doorbell.user))
            .collect()
    }

    #[test]
    fn submissions_are_one_look_and_jobs_one_each() {
        let text = "1 submit 100 alice -\n1 submit 101 bob -\n1 cli 101 bob 7\n1 cli 102 bob 7\n1 modify 103 root 9\n";
        assert_eq!(
            parsed_doorbells(text),
            [
                ("JobSubmit".to_owned(), 0, "bob".to_owned()),
                ("CliFilter".to_owned(), 7, "bob".to_owned()),
                ("JobSubmit".to_owned(), 9, "root".to_owned()),
            ]
        );
    }

    #[test]
    fn invalid_lines_send_no_doorbell() {
        for text in [
            "",
            "1",
            "2 submit 100 alice -",
            "1 submit x alice -",
            "1 cli 100 alice",
            "1 cli 100 alice 99999999999",
            "1 other 100 alice 1",
            "1 cli 100 alice 1 not-a-uuid",
        ] {
            assert_eq!(parsed_doorbells(text), [], "{text}");
        }
    }

    #[test]
    fn a_flood_is_bounded() {
        let text: String = (1..5000)
            .map(|job| format!("1 cli 100 mallory {job}\n"))
            .collect();
        let parsed_doorbells = parsed_doorbells(&text);
        assert_eq!(parsed_doorbells.len(), MAX_JOBS + 1);
        assert!(parsed_doorbells.iter().any(|(_, job, _)| *job == 0));
    }

    #[test]
    fn doorbells_over_the_limit_request_a_poll_and_known_jobs_are_still_read() {
        let mut text: String = (1..5000)
            .map(|job| format!("1 cli 100 mallory {job}\n"))
            .collect();
        text.push_str("1 cli 101 bob 1\n");
        let parsed_doorbells = parsed_doorbells(&text);
        let without_job: Vec<_> = parsed_doorbells
            .iter()
            .filter(|(_, job, _)| *job == 0)
            .collect();
        assert_eq!(
            without_job,
            [&("JobSubmit".to_owned(), 0, "mallory".to_owned())]
        );
        assert!(parsed_doorbells.contains(&("CliFilter".to_owned(), 1, "bob".to_owned())));
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text in "(1 (submit|cli|modify) [0-9]{0,12} \\PC{0,4} [-0-9]{0,12}\n|\\PC{0,20}\n){0,20}") {
            doorbells("c", "h", &text);
        }
    }
}
