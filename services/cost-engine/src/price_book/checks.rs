//! Checks of expected job costs, written by a site for its own price book.
//!
//! A TOML file, documented in this service's README. Each job is priced as the service would price it after its end.

use std::path::{Path, PathBuf};

use mesh_events::proto::mesh::job::v1::Job;
use pbjson_types::Timestamp;
use serde::Deserialize;
use slurm_types::{HostList, Tres};
use toml::{Spanned, Value};

use super::value::Faults;
use super::{Fault, PriceBook, list};
use crate::costing::{AccruedCost, spent};
use crate::domain::{Micros, PriceError};
use crate::usage::RunHistory;

/// Value for a job that must have no price.
const NONE: &str = "none";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChecksFile {
    #[serde(default)]
    job: Vec<Spanned<JobFile>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JobFile {
    name: Spanned<String>,
    #[serde(default)]
    partition: String,
    nodes: Spanned<String>,
    tres: Spanned<String>,
    #[serde(default)]
    exclusive: bool,
    start: Spanned<Value>,
    end: Spanned<Value>,
    #[serde(default)]
    suspended_seconds: u64,
    cost: Spanned<Value>,
}

/// Why checks cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum PriceChecksError {
    /// The file cannot be read.
    #[error("read price checks {path}", path = path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// The file has faults.
    #[error("price checks {file}: {faults}", faults = list(faults))]
    Invalid {
        /// Name of the file.
        file: String,
        /// All faults.
        faults: Vec<Fault>,
    },
}

/// A job and its expected cost.
#[derive(Clone, Debug, PartialEq)]
pub struct PriceCheck {
    /// Name of the check.
    pub name: String,
    /// Expected cost. `None` if the job must have no price.
    pub expected: Option<Micros>,
    job: Job,
    end: i64,
}

impl PriceCheck {
    /// Cost of the job by this book.
    ///
    /// # Errors
    /// If it has no price, with the reason.
    pub fn cost(&self, book: &PriceBook) -> Result<AccruedCost, PriceError> {
        spent(book, &RunHistory::default(), &self.job, self.end)
    }

    /// True if the cost is the expected one.
    pub fn passed(&self, cost: &Result<AccruedCost, PriceError>) -> bool {
        self.expected == cost.as_ref().ok().map(|spent| spent.cost)
    }
}

/// Loads the checks of a file.
///
/// # Errors
/// If it cannot be read, or has faults. Lists all faults.
pub fn load(path: &Path) -> Result<Vec<PriceCheck>, PriceChecksError> {
    let text = std::fs::read_to_string(path).map_err(|source| PriceChecksError::Read {
        path: path.to_owned(),
        source,
    })?;
    parse(&text).map_err(|faults| PriceChecksError::Invalid {
        file: path.display().to_string(),
        faults,
    })
}

fn parse(text: &str) -> Result<Vec<PriceCheck>, Vec<Fault>> {
    let mut faults = Faults::new(text);
    let file: ChecksFile = match toml::from_str(text) {
        Ok(file) => file,
        Err(error) => {
            faults.add(error.span().unwrap_or_default(), "", error.message());
            return Err(faults.found);
        }
    };
    if file.job.is_empty() {
        faults.add(0..0, "job", "the file has no [[job]]: nothing to check");
    }
    let jobs = file.job.into_iter().map(Spanned::into_inner);
    let checks = jobs.filter_map(|job| check(job, &mut faults)).collect();
    if faults.found.is_empty() {
        Ok(checks)
    } else {
        Err(faults.found)
    }
}

fn check(job: JobFile, faults: &mut Faults<'_>) -> Option<PriceCheck> {
    if !HostList::expand(job.nodes.get_ref()).is_ok_and(|nodes| !nodes.is_empty()) {
        let problem = format!(
            "{:?} is not a host list such as \"n[1-8]\"",
            job.nodes.get_ref()
        );
        faults.add(job.nodes.span(), "job.nodes", problem);
    }
    let (_, unread) = Tres::parse_lossy(job.tres.get_ref());
    if !unread.is_empty() || job.tres.get_ref().is_empty() {
        let problem = format!(
            "{:?} is not in the format of sacct's AllocTRES, such as \"cpu=4,mem=16G,gres/gpu=1,billing=4\"",
            job.tres.get_ref()
        );
        faults.add(job.tres.span(), "job.tres", problem);
    }
    let (start, end) = (
        faults.time("job.start", Some(&job.start)),
        faults.time("job.end", Some(&job.end)),
    );
    if let (Some(start), Some(end)) = (start, end)
        && end < start
    {
        faults.add(job.end.span(), "job.end", "is before `start`");
    }
    let is_none = job.cost.get_ref().as_str() == Some(NONE);
    let expected = if is_none {
        None
    } else {
        Some(faults.cost("job.cost", &job.cost)?)
    };
    let (start, end) = (start?, end?);
    Some(PriceCheck {
        name: job.name.into_inner(),
        expected,
        job: Job {
            partition: job.partition,
            nodes: job.nodes.into_inner(),
            alloc_tres: job.tres.into_inner(),
            exclusive: job.exclusive,
            suspended_seconds: job.suspended_seconds,
            start_time: Some(at(start)),
            end_time: Some(at(end)),
            ..Job::default()
        },
        end,
    })
}

const fn at(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanos: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../../examples/price-checks.toml");

    fn book() -> PriceBook {
        PriceBook::parse(crate::EXAMPLE_PRICE_BOOK, "price-book.toml").unwrap()
    }

    #[test]
    fn the_examples_fit_each_other() {
        let checks = parse(EXAMPLE).unwrap();
        assert!(checks.len() > 2);
        for check in checks {
            let cost = check.cost(&book());
            assert!(check.passed(&cost), "{}: {cost:?}", check.name);
        }
    }

    #[test]
    fn another_price_is_found() {
        let book = crate::EXAMPLE_PRICE_BOOK.replace("\"0.36\"", "\"0.37\"");
        assert_ne!(book, crate::EXAMPLE_PRICE_BOOK);
        let book = PriceBook::parse(&book, "price-book.toml").unwrap();
        let checks = parse(EXAMPLE).unwrap();
        let failed = |check: &&PriceCheck| !check.passed(&check.cost(&book));
        assert!(checks.iter().any(|check| failed(&check)));
    }

    #[test]
    fn every_fault_is_named_with_its_line() {
        let text = "[[job]]\nname = \"a\"\nnodes = \"n[\"\ntres = \"cpus:4\"\nstart = \"soon\"\nend = 2026-01-01\ncost = -1\n";
        let faults = parse(text).unwrap_err();
        let found: Vec<(usize, &str)> = faults
            .iter()
            .map(|fault| (fault.line, fault.key.as_str()))
            .collect();
        let expected = [
            (3, "job.nodes"),
            (4, "job.tres"),
            (5, "job.start"),
            (7, "job.cost"),
        ];
        assert_eq!(found, expected, "{faults:?}");
        assert_eq!(parse("").unwrap_err()[0].key, "job");
        assert!(
            parse("[[job]]\ncolour = 1\n").unwrap_err()[0]
                .problem
                .contains("colour")
        );
    }
}
