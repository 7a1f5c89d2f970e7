//! `smesh inspect`, for bug reports: works without Slurm and without a mesh.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use crate::mesh::{stderr, stdout};

fn inspect(file: &str, input: &str) -> Output {
    in_zone("UTC", &[file], input)
}

/// On a machine in a zone.
fn in_zone(zone: &str, arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_smesh"))
        .env("TZ", zone)
        .arg("inspect")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    child.wait_with_output().unwrap()
}

#[test]
fn each_record_is_one_line_of_json() {
    let rows = "JobID|JobIDRaw|State|ExitCode|Submit\n7_1|8|FAILED|3:0|1795305073\n9|9|RUNNING|0:0|1795305074\n";
    let output = inspect("-", rows);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let records: Vec<serde_json::Value> = stdout(&output)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(records.len(), 2);
    assert_eq!(records[0]["kind"], "accounting");
    assert_eq!(records[0]["record"]["state"], "FAILED");
    assert_eq!(records[0]["record"]["exit_code"]["exit"], 3);
}

#[test]
fn unreadable_input_is_reported_by_line() {
    let output = inspect("-", "JobID|State|ExitCode\n1|FAILED|3:0\n2|FAI\n");
    assert_eq!(output.status.code(), Some(1));
    let printed = stderr(&output);
    assert!(
        printed.contains("standard input: line 3") && stdout(&output).is_empty(),
        "{printed}"
    );

    let output = inspect("-", "");
    assert!(output.status.code() == Some(1) && stderr(&output).contains("empty"));

    let output = inspect("/nonexistent/file", "");
    assert!(!output.status.success() && stderr(&output).contains("/nonexistent/file"));
}

#[test]
fn an_empty_list_is_reported_as_empty() {
    let answers = [
        r#"{"jobs":[],"errors":[],"warnings":[],"meta":{"plugin":{"data_parser":"data_parser/v0.0.42"},"slurm":{"release":"24.11.5"}}}"#,
        "JobID|JobIDRaw|State|ExitCode|Submit\n",
    ];
    for answer in answers {
        let output = inspect("-", answer);
        let printed = stderr(&output);
        assert!(output.status.success() && stdout(&output).is_empty());
        assert!(
            printed.contains("standard input: ") && printed.contains("without records"),
            "{printed}"
        );
    }
}

/// `date` agrees, so the zone of this machine is the one that Slurm's commands would use here.
#[test]
fn times_without_a_zone_are_in_that_of_the_machine_or_the_named_one() {
    let rows = "JobID|State|Submit|Start\n7|RUNNING|2026-07-20T20:30:00|Unknown\n";
    for (machine, arguments, zone) in [
        ("America/New_York", &["-"][..], "America/New_York"),
        (
            "America/New_York",
            &["-", "--timezone", "Asia/Tokyo"],
            "Asia/Tokyo",
        ),
        ("no/such", &["-", "--timezone", "UTC", "--json"], "UTC"),
    ] {
        let output = in_zone(machine, arguments, rows);
        assert!(output.status.success(), "{}", stderr(&output));
        let record: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
        assert_eq!(record["timezone"], zone);
        let mut date = Command::new("date");
        let date = date
            .env("TZ", zone)
            .args(["+%s", "-d", "2026-07-20T20:30:00"]);
        let expected = stdout(&date.output().unwrap());
        assert_eq!(record["record"]["submit"].to_string(), expected.trim());
        let said = stderr(&output).contains(&format!("read in {zone}"));
        assert_eq!(said, arguments.len() == 1, "{}", stderr(&output));
    }
    // Nothing is in a zone that no time needed.
    let output = in_zone(
        "no/such",
        &["-"],
        &rows.replace("2026-07-20T20:30:00", "1795305073"),
    );
    assert!(output.status.success() && !stdout(&output).contains("timezone"));
}

#[test]
fn a_time_that_is_no_single_moment_is_refused() {
    let berlin = ["-", "--timezone", "Europe/Berlin"];
    for (machine, arguments, time, expected) in [
        ("UTC", &berlin[..], "2026-10-25T02:30:00", "occurs twice"),
        ("UTC", &berlin, "2026-03-29T02:30:00", "does not exist"),
        ("UTC", &berlin, "soon", "is not a date or time"),
        (
            "no/such",
            &["-"],
            "2026-07-20T20:30:00",
            "name it with --timezone",
        ),
    ] {
        let rows = format!("JobID|State|Submit\n7|RUNNING|{time}\n");
        let output = in_zone(machine, arguments, &rows);
        let printed = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{printed}");
        assert!(
            printed.contains("line 2: column Submit: ") && printed.contains(expected),
            "{printed}"
        );
    }
    let output = in_zone("UTC", &["-", "--timezone", "Berlin"], "");
    assert_eq!(output.status.code(), Some(64), "{}", stderr(&output));
}
