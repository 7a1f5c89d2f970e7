//! `smesh doctor`: checks everything from Slurm's commands to the delivery of a doorbell, and prints what to fix. With `--service` it
//! checks services at their addresses instead.

mod advice;
mod certificates;
mod checks;
mod hooks;
mod services;
mod spank;
mod storage;

use std::process::ExitCode;

use anstyle::{AnsiColor, Style};

use crate::cli::{Doctor, Global};
use crate::error::Error;
use crate::show;

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckResult {
    /// No fault.
    Good,
    /// Works, but needs the operator's attention.
    Warning,
    /// Must be fixed.
    Bad,
    /// Could not be checked.
    Unknown,
    /// Cannot be checked from here.
    Skipped,
}

/// Finding of a check.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Subject of the check.
    pub subject: &'static str,
    /// Result of the check.
    pub grade: CheckResult,
    /// Observation, as text.
    pub found: String,
    /// What to do. Empty if nothing.
    pub fix: String,
}

impl Finding {
    fn new(
        subject: &'static str,
        grade: CheckResult,
        found: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            subject,
            grade,
            found: found.into(),
            fix: fix.into(),
        }
    }
}

pub(super) async fn run(global: &Global, args: &Doctor) -> Result<ExitCode, Error> {
    let findings = match args.services.as_slice() {
        [] => checks::all(global).await,
        addresses => services::all(global, addresses).await?,
    };
    for finding in &findings {
        if global.json {
            let grade = format!("{:?}", finding.grade).to_lowercase();
            show::line(
                serde_json::json!({ "check": finding.subject, "grade": grade, "found": finding.found, "fix": finding.fix }),
            )?;
        } else {
            let (mark, colour) = match finding.grade {
                CheckResult::Good => ("ok  ", AnsiColor::Green),
                CheckResult::Warning => ("look", AnsiColor::Yellow),
                CheckResult::Bad => ("FIX ", AnsiColor::Red),
                CheckResult::Unknown => ("?   ", AnsiColor::Magenta),
                CheckResult::Skipped => ("skip", AnsiColor::BrightBlack),
            };
            let mark = show::styled(mark, Style::new().bold().fg_color(Some(colour.into())));
            show::line(format!(
                "{mark}  {:<16} {}",
                finding.subject,
                show::clean(&finding.found)
            ))?;
            if !finding.fix.is_empty() {
                show::line(format!(
                    "                        → {}",
                    show::clean(&finding.fix)
                ))?;
            }
        }
    }
    let bad = findings
        .iter()
        .filter(|finding| finding.grade == CheckResult::Bad)
        .count();
    if !global.json {
        let summary = match bad {
            0 => "no problems".to_owned(),
            1 => "1 problem must be fixed".to_owned(),
            n => format!("{n} problems must be fixed"),
        };
        show::line(show::bold(&summary))?;
    }
    Ok(if bad == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
