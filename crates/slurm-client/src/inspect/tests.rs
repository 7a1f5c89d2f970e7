//! Every capture, and texts that are none.

use std::{
    fs,
    path::{Path, PathBuf},
};

use proptest::prelude::*;

use super::*;

/// As `smesh inspect` reads times on a machine in UTC.
fn inspect(bytes: &[u8]) -> Result<Inspection, InspectError> {
    super::inspect(bytes, &|text| in_zone(text, &chrono::Utc))
}

fn in_zone<Z: chrono::TimeZone>(
    text: &str,
    zone: &Z,
) -> Result<chrono::DateTime<chrono::Utc>, String> {
    let local = chrono::NaiveDateTime::parse_from_str(text, "%Y-%m-%dT%H:%M:%S");
    let local = local.map_err(|_| format!("{text:?} is not a time"))?;
    let time = local.and_local_timezone(zone.clone()).single();
    time.map(|time| time.to_utc())
        .ok_or_else(|| format!("{text:?} is no single moment"))
}

fn files(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files(&path, into),
            false => into.push(path),
        }
    }
}

/// The header of captures that were asked with `-h`, and the columns of it that are kept: sinfo names two of them the same.
fn missing_header(path: &str) -> Option<(&'static str, &'static [usize])> {
    if path.ends_with("/squeue.txt") {
        let header = "JOBID|STATE|ST|REASON|NODELIST|START_TIME|END_TIME|PRIORITY|NODELIST(REASON)";
        return Some((header, &[0, 1, 2, 3, 4, 5, 6, 7, 8]));
    }
    let header = "HOSTNAMES|STATE|REASON|USER|TIMESTAMP|AVAIL_FEATURES|GRES|CPUS(A/I/O/T)|CPU_LOAD";
    let is_sinfo = path.ends_with("/sinfo.txt");
    is_sinfo.then_some((header, &[0, 1, 3, 4, 5, 6, 7, 8, 9]))
}

/// The capture as it is with its header. Without one it is refused.
fn with_header(path: &str, bytes: Vec<u8>) -> Vec<u8> {
    let Some((header, columns)) = missing_header(path) else {
        return bytes;
    };
    let text = String::from_utf8(bytes).unwrap();
    if text.trim().is_empty() {
        return text.into();
    }
    let error = inspect(text.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("no header line"), "{path}: {error}");
    let mut whole = header.to_owned();
    for line in text.lines() {
        let values: Vec<&str> = line.split('|').collect();
        let kept: Vec<&str> = columns.iter().map(|at| values[*at]).collect();
        whole += &format!("\n{}", kept.join("|"));
    }
    whole.into()
}

/// Captures of errors: an unknown job, a path that is not served, a missing node. And a table that cannot be split for certain: one with a
/// time limit wider than its column.
fn is_refused(path: &str, bytes: &[u8]) -> bool {
    path.contains("nosuchjob")
        || path.ends_with("licenses.txt")
        || path.ends_with("reservations.txt")
        || path.ends_with("squeue-l.txt")
        || bytes.starts_with(b"Node c")
}

#[test]
fn every_capture_is_read() {
    let root: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests"].iter().collect();
    let mut all = Vec::new();
    files(&root.join("captures"), &mut all);
    for version in ["22.05", "24.11", "26.05"] {
        for kind in ["jobs", "nodes"] {
            files(&root.join("data").join(version).join(kind), &mut all);
        }
        all.push(root.join("data").join(version).join("sacct.txt"));
    }
    all.sort();
    let (mut unread, mut records) = (Vec::new(), 0);
    for path in &all {
        let name = path.strip_prefix(&root).unwrap().display().to_string();
        // Inspection covers jobs and nodes, not access.
        if name.ends_with("README.md") || name.contains("/sacctmgr-") {
            continue;
        }
        let bytes = with_header(&name, fs::read(path).unwrap());
        match (inspect(&bytes), is_refused(&name, &bytes)) {
            (Ok(_), true) => unread.push(format!("{name}: an error was read as an answer")),
            (Err(error), false) => unread.push(format!("{name}: {error}")),
            (Err(_), true) => {}
            (Ok(inspection), false) => {
                records += inspection.records.len();
                for one in &inspection.records {
                    let odd = one
                        .record
                        .get("oddities")
                        .and_then(Value::as_u64)
                        .unwrap_or(0);
                    if odd > 0 {
                        unread.push(format!(
                            "{name}: {odd} fields of a {} have an unknown form",
                            one.kind
                        ));
                    }
                }
            }
        }
    }
    assert!(
        unread.is_empty(),
        "{} of {}:\n{}",
        unread.len(),
        all.len(),
        unread.join("\n")
    );
    assert!(
        all.len() > 900 && records > 1_500,
        "{} files, {records} records",
        all.len()
    );
}

/// Checks the kind and one field of each record.
fn check(text: &str, source: &str, expected: &[(&str, &str)]) {
    let inspection = inspect(text.as_bytes()).unwrap();
    assert_eq!(inspection.source, source);
    let found: Vec<(String, String)> = inspection
        .records
        .iter()
        .map(|one| {
            (
                one.kind.clone(),
                one.record["state"].as_str().unwrap_or_default().to_owned(),
            )
        })
        .collect();
    let found: Vec<(&str, &str)> = found
        .iter()
        .map(|(kind, state)| (kind.as_str(), state.as_str()))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn tables_are_recognised() {
    check(
        "JobID|JobIDRaw|State|ExitCode\n7_1|8|CANCELLED by 20002|0:15\n7_1.batch|8.batch|CANCELLED|0:15\n",
        "sacct",
        &[("accounting", "CANCELLED"), ("step", "")],
    );
    check(
        "JobID           JobName      State ExitCode\n------------ ---------- ---------- --------\n7             a b c     OUT_OF_ME+    0:125\n",
        "sacct",
        &[("accounting", "OUT_OF_ME")],
    );
    check(
        "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)\n        12_[1-3%2]       cpu    x y z    alice PD       0:00      1 (Dependency)\n",
        "squeue",
        &[("queue", "")],
    );
    check(
        "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\ncpu*         up 1-00:00:00      2  drng* n[1-2]\ncloud        up   infinite      0    n/a \n",
        "sinfo",
        &[("nodes", "MIXED+DRAIN+NOT_RESPONDING"), ("nodes", "")],
    );
}

/// As a real 22.05.8 printed them.
#[test]
fn no_value_is_cut_and_no_line_is_lost() {
    let read = |text: &str| -> Vec<Value> {
        let records = inspect(text.as_bytes()).unwrap().records;
        records.into_iter().map(|one| one.record).collect()
    };
    let rows = read(
        "JOBID               NAME                PARTITION           STATE               \n\
         510003              averyveryverylongnamcpu                 PENDING             \n\
         510001              a b c               cpu                 RUNNING             \n",
    );
    assert_eq!(rows[0]["jobid"], "510003");
    assert_eq!(rows[0]["name"], "averyveryverylongnam");
    assert_eq!(rows[1]["name"], "a b c");

    let reservations = read(
        "ReservationName=maint StartTime=2026-11-24T00:24:02\n   Nodes=n2 NodeCnt=1\n   Users=root State=INACTIVE\n\n\
         ReservationName=other StartTime=2026-11-24T02:24:24\n   Nodes=n1 NodeCnt=1\n\n",
    );
    assert_eq!(reservations.len(), 2);
    let text = reservations[0]["text"].as_str().unwrap();
    assert!(
        text.contains("Nodes=n2") && text.ends_with("State=INACTIVE"),
        "{text}"
    );

    let cancelled = r#"{"jobs":[{"job_id":1,"time":{},"state":{"current":["CANCELLED"]},"kill_request_user":"bob"}],"meta":{"slurm":{"release":"24.11.5"}}}"#;
    assert_eq!(read(cancelled)[0]["cancelled_by"], "bob");
}

#[test]
fn tables_of_other_commands_are_refused() {
    for (text, expected_text) in [
        (
            "          JOBID PARTITION   PRIORITY       SITE        AGE\n         510004 cpu             2000          0          0\n",
            "unknown column \"SITE\" for squeue",
        ),
        (
            "         STEPID     NAME PARTITION     USER      TIME NODELIST\n   510001.batch    batch       cpu    alice      0:26 n1\n",
            "unknown column \"STEPID\" for sinfo",
        ),
        ("JOBID|NAME|NAME\n1|a|b\n", "duplicate"),
        ("JOBID NAME ST\n510003 a b PD\n", "squeue -o"),
        ("User|Def Acct|Admin\nalice|physics|None\n", "header line"),
    ] {
        let error = inspect(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(expected_text), "{text:?}: {error}");
    }
}

/// No column is found by the form of its values: a job may be named like a state, and partitions, hosts and users have states, too.
#[test]
fn tables_without_a_header_are_refused_with_what_to_ask() {
    for text in [
        // sacct -n -P, with and without a column of states.
        "1|FAILED|cpu\n",
        "1|FAILED|cpu|physics|1|RUNNING|0:0\n1.batch|batch||physics|1|RUNNING|0:0\n",
        "1|FAILED|RUNNING\n2|FAILED|RUNNING\n",
        // sinfo -h -o '%P|%a|%T'
        "cpu*|up|idle\n",
        "n1|idle\n",
        // Tables of other commands.
        "router1|DOWN\n",
        "alice|idle\n",
    ] {
        let error = inspect(text.as_bytes()).unwrap_err().to_string();
        for part in [
            "no header line",
            "squeue -o",
            "without -h",
            "sacct -P without -n",
        ] {
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }
}

#[test]
fn every_refusal_names_a_command_to_ask() {
    for (text, command) in [
        ("", "sacct -D -P"),
        ("{\"jobs\":[\n{\"job_id\":1,", "scontrol show job ID --json"),
        ("{\"jobs\":[{\"job_id\":1}]}", "scontrol show job ID --json"),
        ("{\"nodes\":[{\"x\":1}]}", "scontrol show nodes --json"),
        (
            "{\"partitions\":[{\"x\":1}]}",
            "scontrol show partitions --json",
        ),
        (
            "{\"associations\":[{\"x\":1}]}",
            "/slurmdb/v0.0.NN/associations/",
        ),
        ("{\"users\":[{\"x\":1}]}", "/slurmdb/v0.0.NN/users/"),
        ("{\"hello\":1}", "squeue --json"),
        (
            "{\"jobs\":[],\"errors\":[{\"error_number\":1,\"error\":\"Kaputt\"}]}",
            "squeue --json",
        ),
        (
            "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n",
            "scontrol ping",
        ),
        (
            "JobId=1 JobName=x UserId=a(1) UserId=b(2)\n",
            "scontrol show job ID",
        ),
        ("JobId=x\n", "scontrol show job ID"),
        ("NodeName=n1 NodeName=n2\n", "scontrol show node"),
        ("PartitionName=\n", "scontrol show partition"),
        ("JobID|State\n1|FAILED\n2\n", "sacct -P"),
        ("JOBID|NAME|NAME\n1|a|b\n", "squeue -o"),
        ("JOBID|SITE\n1|a\n", "squeue -o"),
        ("PARTITION|SITE\n1|a\n", "sinfo -o"),
        ("JOBID\u{1f}x\n", "squeue -o"),
        ("hello world\n", "sacct -D -P"),
    ] {
        let error = inspect(text.as_bytes()).unwrap_err().to_string();
        let (_, ask) = error.split_once("; ask Slurm with: ").unwrap();
        assert!(ask.contains(command), "{text:?}: {error}");
    }
}

#[test]
fn a_job_in_several_lines_is_the_job_in_one() {
    let one: PathBuf = [
        env!("CARGO_MANIFEST_DIR"),
        "tests/captures/26.05/jobs/gpu-running/scontrol.txt",
    ]
    .iter()
    .collect();
    let one = fs::read_to_string(one).unwrap();
    let several = one
        .replace(" UserId=", "\n   UserId=")
        .replace(" JobState=", "\n   JobState=")
        .replace(" TRES=", "\n   TRES=")
        .replace(" Command=", "\n   Command=")
        + "\n";
    assert_eq!(inspect(one.as_bytes()), inspect(several.as_bytes()));
}

#[test]
fn unusable_answers_are_reported_with_place_and_reason() {
    for (text, line, expected_text) in [
        ("", 0, "empty"),
        ("\n\n", 0, "empty"),
        ("{\"jobs\":[\n{\"job_id\":1,", 2, "truncated"),
        ("{\"jobs\":[{\"job_id\":1}]}", 0, "job_state"),
        (
            "{\"jobs\":[],\"errors\":[{\"error_number\":1,\"error\":\"Kaputt\"}]}",
            0,
            "Kaputt",
        ),
        ("{\"hello\":1}", 0, "not a document"),
        (
            "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n",
            1,
            "controller_down",
        ),
        ("JobId=1 JobName=x UserId=a(1) UserId=b(2)\n", 1, "its name"),
        (
            "JobID|State|ExitCode\n1|FAILED|3:0\n2|FAI\n",
            3,
            "2 columns",
        ),
        ("JobID|State|ExitCode\nx|FAILED|3:0\n", 2, "not a job id"),
        ("hello world\n", 1, "header line"),
    ] {
        let error = inspect(text.as_bytes()).unwrap_err();
        assert!(
            error.line == line && error.to_string().contains(expected_text),
            "{text:?}: {error}"
        );
    }
}

/// Half past eight in a zone two hours ahead of UTC.
const LOCAL: &str = "2026-11-20T20:30:00";
const SECONDS: i64 = 1_795_199_400;

/// Records of a text in that zone, and whether a time of it had none.
fn two_hours_ahead(text: &str) -> (Vec<Value>, bool) {
    let zone = chrono::FixedOffset::east_opt(7_200).unwrap();
    let read = super::inspect(text.as_bytes(), &|text| in_zone(text, &zone));
    let read = read.unwrap_or_else(|error| panic!("{text}: {error}"));
    let records = read.records.into_iter().map(|one| one.record);
    (records.collect(), read.local_times)
}

/// The forms of a default configuration, without SLURM_TIME_FORMAT.
#[test]
fn times_without_a_zone_are_read_in_that_of_the_caller() {
    let unit = '\x1f';
    let columns = |time: &str| {
        [
            "7", "7", "7", "N/A", "RUNNING", time, "N/A", time, "1", "cpu", "a", "1", "p", "q",
            "n1", "1", "1", "10:00", "None",
        ]
        .join(&unit.to_string())
    };
    let job =
        "JobId=7 JobName=x StartTime=soon UserId=a(1) GroupId=a(1) Priority=1 JobState=RUNNING";
    for (text, fields) in [
        (
            format!("JobID|State|Submit|Start|End\n7|RUNNING|{LOCAL}|{LOCAL}|Unknown\n"),
            ["submit", "start", "end"],
        ),
        (
            format!("JOBID|SUBMIT_TIME|START_TIME|END_TIME\n7|{LOCAL}|{LOCAL}|N/A\n"),
            ["submit_time", "start_time", "end_time"],
        ),
        // Narrow columns, whose names are truncated.
        (
            format!("JOBID|SUBMIT_TIM|START_T|END_TIME\n7|{LOCAL}|{LOCAL}|N/A\n"),
            ["submit_tim", "start_t", "end_time"],
        ),
        (
            format!("HOSTNAMES|STATE|TIMESTAMP\nn1|down|{LOCAL}\n"),
            ["timestamp", "timestamp", ""],
        ),
        (
            format!(
                "{job} SubmitTime={LOCAL} StartTime={LOCAL} EndTime=Unknown Network=(null) Command=EndTime=x\n"
            ),
            ["submit", "start", "end"],
        ),
        (
            format!(
                "{job}\n   SubmitTime={LOCAL} StartTime={LOCAL}\n   EndTime=Unknown\n   Network=(null)\n"
            ),
            ["submit", "start", "end"],
        ),
        (
            format!(
                "NodeName=n1 CPUTot=1\n   State=DOWN\n   BootTime={LOCAL} LastBusyTime=None\n   Comment=BootTime=x\n   Reason=bad [x] [root@{LOCAL}]\n"
            ),
            ["boot_time", "reason_time", "last_busy_time"],
        ),
        (
            format!(
                "NodeName=n1 CPUTot=1 State=DOWN BootTime={LOCAL} LastBusyTime=None Reason=bad [root@{LOCAL}]\n"
            ),
            ["boot_time", "reason_time", "last_busy_time"],
        ),
    ] {
        let (records, had_local) = two_hours_ahead(&text);
        assert!(had_local, "{text}");
        let found = fields.map(|field| records[0].get(field).cloned().unwrap_or_default());
        assert_eq!(
            found,
            [SECONDS.into(), SECONDS.into(), Value::Null],
            "{text}: {}",
            records[0]
        );
        // Unix seconds mean the same everywhere.
        let (same, had_local) = two_hours_ahead(&text.replace(LOCAL, &SECONDS.to_string()));
        assert_eq!((same, had_local), (records, false), "{text}");
    }
    let (records, _) = two_hours_ahead(&columns(LOCAL));
    assert_eq!(records[0]["submit"], SECONDS.to_string());
    // The name of the job is its user's.
    let (records, _) = two_hours_ahead(&format!("{job} SubmitTime={LOCAL} Network=(null)\n"));
    assert_eq!(records[0]["name"], "x StartTime=soon");
}

#[test]
fn unreadable_times_are_refused_by_line_and_column() {
    for (text, expected) in [
        (
            "JobID|State|Submit\n7|RUNNING|Unknown\n8|RUNNING|Tomr 10:00\n",
            "line 3: column Submit: \"Tomr 10:00\"",
        ),
        (
            "JOBID|START_TIME\n7|N/A\n\n8|2026-02-30T10:00:00\n",
            "line 4: column START_TIME: \"2026-02-30T10:00:00\"",
        ),
        // Cut to the width of its column.
        (
            "JOBID|START_TIME\n7|2026-11-20\n",
            "line 2: column START_TIME: \"2026-11-20\"",
        ),
        ("JOBID|DEADLINE\n7|-5\n", "line 2: column DEADLINE: \"-5\""),
        (
            "HOSTNAMES|STATE|TIMESTAMP\nn1|down|yesterday\n",
            "line 2: column TIMESTAMP: \"yesterday\"",
        ),
        (
            "JobId=7 JobName=x\n   UserId=a(1)\n   SubmitTime=1795199400 StartTime=Ystday 10:00 EndTime=0\n",
            "line 3: job 7: StartTime: \"Ystday 10:00\"",
        ),
        (
            "NodeName=n1\n   BootTime=20 Nov 10:00\n",
            "line 2: BootTime: \"20 Nov 10:00\"",
        ),
        (
            "NodeName=n1\n   Reason=bad [root@19:57]\n",
            "line 2: Reason: \"19:57\"",
        ),
    ] {
        let error = inspect(text.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{text:?}: {error}");
        assert!(error.contains("SLURM_TIME_FORMAT=%s"), "{error}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..300), text in "(JobId=|NodeName=|JOBID STATE|\\{\"jobs\":)?(?s).{0,200}") {
        drop((inspect(&bytes), inspect(text.as_bytes())));
    }
}
