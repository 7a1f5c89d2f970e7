//! `smesh doctor`: looks at everything from Slurm's commands to a doorbell that rings, and says what to fix.

mod advice;
mod checks;
mod storage;

use std::process::ExitCode;

use anstyle::{AnsiColor, Style};

use crate::cli::Global;
use crate::error::Error;
use crate::show;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grade {
    /// As it should be.
    Good,
    /// Works, but somebody should look.
    Warning,
    /// Must be fixed.
    Bad,
    /// Could not be looked at.
    Unknown,
}

/// What a check found.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What was looked at.
    pub what: &'static str,
    /// How it is.
    pub grade: Grade,
    /// What was found.
    pub found: String,
    /// What to do; empty if nothing.
    pub fix: String,
}

impl Finding {
    fn new(
        what: &'static str,
        grade: Grade,
        found: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            what,
            grade,
            found: found.into(),
            fix: fix.into(),
        }
    }
}

pub(super) async fn run(global: &Global) -> Result<ExitCode, Error> {
    let findings = checks::all(global).await;
    for finding in &findings {
        if global.json {
            let grade = format!("{:?}", finding.grade).to_lowercase();
            show::line(
                serde_json::json!({ "check": finding.what, "grade": grade, "found": finding.found, "fix": finding.fix }),
            )?;
        } else {
            let (mark, colour) = match finding.grade {
                Grade::Good => ("ok  ", AnsiColor::Green),
                Grade::Warning => ("look", AnsiColor::Yellow),
                Grade::Bad => ("FIX ", AnsiColor::Red),
                Grade::Unknown => ("?   ", AnsiColor::Magenta),
            };
            let mark = show::styled(mark, Style::new().bold().fg_color(Some(colour.into())));
            show::line(format!(
                "{mark}  {:<16} {}",
                finding.what,
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
        .filter(|finding| finding.grade == Grade::Bad)
        .count();
    if !global.json {
        let summary = match bad {
            0 => "nothing must be fixed".to_owned(),
            1 => "1 thing must be fixed".to_owned(),
            n => format!("{n} things must be fixed"),
        };
        show::line(show::bold(&summary))?;
    }
    Ok(if bad == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
