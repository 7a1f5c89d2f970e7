//! `smesh inspect`, for bug reports: works without Slurm and without a mesh.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use crate::mesh::{stderr, stdout};

fn inspect(file: &str, input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_smesh"))
        .args(["inspect", file])
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
