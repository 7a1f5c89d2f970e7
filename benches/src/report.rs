//! The results as a table and as JSON.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use chrono::{NaiveDate, Utc};
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, Table, TableComponent};
use serde::Serialize;

use crate::stats::Sorted;

/// All results.
#[derive(Serialize)]
pub struct Report {
    machine: Machine,
    pub sections: Vec<Section>,
}

/// The machine. Results of different machines are not comparable.
#[derive(Serialize)]
struct Machine {
    date: NaiveDate,
    cpus: usize,
    cpu: String,
    kernel: String,
    optimised: bool,
}

/// One benchmark.
#[derive(Serialize)]
pub struct Section {
    pub title: &'static str,
    pub lines: Vec<Line>,
    /// Notes for readers of the lines.
    pub notes: Vec<String>,
}

/// One measurement.
#[derive(Serialize)]
pub struct Line {
    what: String,
    unit: &'static str,
    /// The value. A median if there are many samples.
    value: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    p99: Option<f64>,
    /// The value divided by a raw limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio_to: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    budget: Option<Budget>,
}

/// A limit promised in DESIGN.
#[derive(Serialize)]
struct Budget {
    text: &'static str,
    met: bool,
}

impl Line {
    /// A single value.
    pub fn value(what: impl Into<String>, unit: &'static str, value: f64) -> Self {
        Self {
            what: what.into(),
            unit,
            value,
            p99: None,
            ratio: None,
            ratio_to: None,
            budget: None,
        }
    }

    /// Median and p99 of times.
    pub fn times(what: impl Into<String>, samples: &Sorted) -> Self {
        Self {
            p99: Some(samples.p99()),
            ..Self::value(what, "ms", samples.median())
        }
    }

    /// Relates the value to a raw limit.
    pub fn against(mut self, raw: f64, name: &'static str) -> Self {
        self.ratio = Some(self.value / raw);
        self.ratio_to = Some(name);
        self
    }

    /// Relates the p99 to another value.
    pub fn p99_against(mut self, other: f64, name: &'static str) -> Self {
        self.ratio = self.p99.map(|p99| p99 / other);
        self.ratio_to = Some(name);
        self
    }

    /// The promised limit, and whether it is met.
    pub fn budget(mut self, text: &'static str, met: bool) -> Self {
        self.budget = Some(Budget { text, met });
        self
    }

    /// A limit that applies only under some load.
    pub fn budget_if(self, applies: bool, text: &'static str, met: bool) -> Self {
        if applies {
            self.budget(text, met)
        } else {
            self
        }
    }
}

/// Logs a result while others are still measured, so that a long run that fails leaves its results.
#[allow(clippy::print_stderr, reason = "beside the report on standard output")]
pub fn progress(line: Line) -> Line {
    let Line {
        what, value, unit, ..
    } = &line;
    match line.p99 {
        Some(p99) => eprintln!("{what}: {value:.1}, p99 {p99:.1} {unit}"),
        None => eprintln!("{what}: {value:.1} {unit}"),
    }
    line
}

impl Report {
    pub fn new() -> anyhow::Result<Self> {
        let cpu = std::fs::read_to_string("/proc/cpuinfo")?
            .lines()
            .find_map(|line| {
                line.strip_prefix("model name")
                    .map(|rest| rest.trim_start_matches([' ', '\t', ':']).to_owned())
            })
            .unwrap_or_else(|| "unknown".to_owned());
        let machine = Machine {
            date: Utc::now().date_naive(),
            cpus: std::thread::available_parallelism()?.get(),
            cpu,
            kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease")?
                .trim()
                .to_owned(),
            optimised: !cfg!(debug_assertions),
        };
        Ok(Self {
            machine,
            sections: Vec::new(),
        })
    }

    /// The file of the day, in the folder of the benchmarks.
    pub fn default_file(&self) -> PathBuf {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
        folder.join(format!("{}.json", self.machine.date))
    }

    pub fn write(&self, file: &Path) -> anyhow::Result<()> {
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let mut json = serde_json::to_string_pretty(self)?;
        json.push('\n');
        Ok(std::fs::write(file, json)?)
    }

    pub fn table(&self) -> String {
        let Machine {
            date: _,
            cpus,
            cpu,
            kernel,
            optimised,
        } = &self.machine;
        let profile = if *optimised {
            ""
        } else {
            " · NOT OPTIMISED: build with --release"
        };
        let mut text = format!("{cpus} × {cpu} · Linux {kernel}{profile}\n");
        for section in &self.sections {
            let mut table = Table::new();
            table.load_preset(UTF8_HORIZONTAL_ONLY);
            table.remove_style(TableComponent::HorizontalLines);
            table.remove_style(TableComponent::MiddleIntersections);
            table.set_header([
                section.title,
                "median",
                "p99",
                "unit",
                "ratio",
                "to",
                "budget",
                "",
            ]);
            for line in &section.lines {
                table.add_row(cells(line));
            }
            for column in [1, 2, 4] {
                if let Some(column) = table.column_mut(column) {
                    column.set_cell_alignment(CellAlignment::Right);
                }
            }
            let notes: String = section
                .notes
                .iter()
                .map(|note| format!("  {note}\n"))
                .collect();
            // Writing to a String cannot fail.
            write!(text, "\n{table}\n{notes}").ok();
        }
        text
    }
}

fn cells(line: &Line) -> [String; 8] {
    let optional = |value: Option<f64>| value.map(number).unwrap_or_default();
    let (budget, met) = line.budget.as_ref().map_or(("", ""), |budget| {
        (budget.text, if budget.met { "ok" } else { "MISSED" })
    });
    [
        line.what.clone(),
        number(line.value),
        optional(line.p99),
        line.unit.to_owned(),
        line.ratio
            .map(|ratio| format!("{ratio:.2}"))
            .unwrap_or_default(),
        line.ratio_to.unwrap_or_default().to_owned(),
        budget.to_owned(),
        met.to_owned(),
    ]
}

fn number(value: f64) -> String {
    if value >= 1_000.0 {
        format!("{value:.0}")
    } else if value >= 100.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}
