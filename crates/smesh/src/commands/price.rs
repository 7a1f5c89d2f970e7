//! `smesh price check`: cost test vectors against the formulas.

use std::process::ExitCode;

use serde_json::json;

use crate::cli::{self, Global};
use crate::error::Error;
use crate::show;

pub(super) fn run(global: &Global, args: &cli::Price) -> Result<ExitCode, Error> {
    let cli::Price::Check { file } = args;
    let text = std::fs::read_to_string(file).map_err(|source| Error::io("read", file, source))?;
    let report = cost_engine::check_vectors(&text).map_err(|error| {
        Error::Failed(format!(
            "{}: {}",
            file.display(),
            mesh_runtime::chain(&error)
        ))
    })?;
    if global.json {
        let differences: Vec<_> = report
            .differences
            .iter()
            .map(|d| json!({ "vector": d.vector, "title": d.title, "field": d.field, "expected": d.expected, "found": d.found }))
            .collect();
        show::line(
            json!({ "passed": report.passed(), "checked": report.checked, "differences": differences }),
        )?;
    } else {
        for difference in &report.differences {
            show::line(difference)?;
        }
        show::line(format!(
            "{} vectors checked, {} figures differ",
            report.checked,
            report.differences.len()
        ))?;
    }
    Ok(if report.passed() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
