//! Entry points for fuzz targets (`fuzz/`) and for the test that replays their seeds: every parser of command output, or of JSON, at once.

use std::collections::HashMap;

use crate::json;
use crate::parse::{self, Separator};

/// Parses a text as the output of every command. No text may cause a panic, or records of lines that do not exist.
pub fn text(text: &str) {
    let lines = text.lines().count();
    let (rows, unread) = parse::queue(text);
    assert!(rows.len() + unread.count <= lines);
    let jobs = parse::jobs(text, &HashMap::new());
    assert!(jobs.records.len() + jobs.unclear.len() <= lines);
    for comments in [false, true] {
        let (found, unread) = parse::associations(text, comments);
        assert_eq!(found.len() + unread.count, lines);
    }
    let (found, unread) = parse::users(text);
    assert_eq!(found.len() + unread.count, lines);
    assert!(parse::transactions(text).0.len() <= lines);
    assert!(parse::nodes(text).0.len() <= lines);
    assert!(parse::partitions(text).0.len() <= lines);
    parse::config(text);
    // The separator cannot be guessed; a text that contained it would look like this.
    let separator = Separator::random();
    let delimited = text.replace('|', separator.as_str());
    if let Some((found, unread)) = parse::accounting(&delimited, &separator) {
        assert!(found.len() + unread.count <= delimited.matches(separator.as_str()).count() + 1);
    }
}

/// Parses a document as every response of slurmrestd.
pub fn document(body: &[u8]) {
    let read = |list: &str| {
        json::answer(body, list, |value| {
            let job = json::job(value);
            if let Ok(job) = &job {
                json::queue_row(job, &mut parse::StringInterner::default());
            }
            json::node(value);
            json::partition(value);
            json::association(value);
            json::user(value);
            for codes in [json::ExitCodes::Reported, json::ExitCodes::Lost] {
                json::accounting(value, codes, |_| None);
            }
        })
    };
    for list in [
        "jobs",
        "nodes",
        "partitions",
        "pings",
        "associations",
        "users",
    ] {
        if let Ok(answer) = read(list) {
            answer.envelope.error_text();
        }
    }
}
