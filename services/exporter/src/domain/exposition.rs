//! Writes Prometheus' text format 0.0.4 and OpenMetrics 1.0.0.

use mesh_runtime::api::{OPENMETRICS, PROMETHEUS_TEXT};

use super::exemplars::Exemplar;

/// The format of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' text format 0.0.4.
    Text,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl Format {
    /// Its media type.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text => PROMETHEUS_TEXT,
            Self::OpenMetrics => OPENMETRICS,
        }
    }
}

/// Type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// May go up and down.
    Gauge,
    /// Only grows. Its name ends with `_total`.
    Counter,
    /// Numbers of observations by upper bound.
    Histogram,
}

impl Kind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Gauge => "gauge",
            Self::Counter => "counter",
            Self::Histogram => "histogram",
        }
    }
}

/// Label names and values.
pub type Labels<'a> = [(&'a str, &'a str)];

/// A page that is being written.
pub struct Exposition {
    text: String,
    format: Format,
    series: usize,
    /// Metric whose head was not written yet: a metric without samples is left out.
    head: Option<(String, Kind, String)>,
}

impl Exposition {
    /// An empty page.
    pub const fn new(format: Format) -> Self {
        Self {
            text: String::new(),
            format,
            series: 0,
            head: None,
        }
    }

    /// Begins a metric. All samples until the next call are its own.
    pub fn metric(&mut self, name: &str, kind: Kind, help: &str) {
        self.head = Some((name.to_owned(), kind, help.to_owned()));
    }

    /// Writes a sample of the present metric. `name` has the suffix that its type demands.
    pub fn sample(&mut self, name: &str, labels: &Labels<'_>, value: f64) {
        self.begin();
        self.text.push_str(name);
        for (place, (label, value)) in labels.iter().enumerate() {
            self.text.push_str(if place == 0 { "{" } else { "," });
            self.text.push_str(label);
            self.text.push_str("=\"");
            escape(&mut self.text, value, true);
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        self.text.push(' ');
        number(&mut self.text, value);
        self.text.push('\n');
        self.series += 1;
    }

    /// Adds an exemplar to the sample before, which is of a bucket. The text format has none.
    pub fn exemplar(&mut self, exemplar: &Exemplar) {
        if self.format != Format::OpenMetrics || self.text.pop() != Some('\n') {
            return;
        }
        let Exemplar {
            trace_id,
            seconds,
            at,
        } = exemplar;
        let at = at.timestamp();
        let text = format!(" # {{trace_id=\"{trace_id}\"}} {seconds} {at}\n");
        self.text.push_str(&text);
    }

    /// The page and its number of series.
    pub fn finish(mut self) -> (String, usize) {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        (self.text, self.series)
    }

    fn begin(&mut self) {
        let Some((name, kind, help)) = self.head.take() else {
            return;
        };
        // OpenMetrics names a counter without its suffix.
        let family = match (self.format, kind) {
            (Format::OpenMetrics, Kind::Counter) => name.strip_suffix("_total").unwrap_or(&name),
            _ => &name,
        };
        let text = &mut self.text;
        text.push_str("# HELP ");
        text.push_str(family);
        text.push(' ');
        escape(text, &help, self.format == Format::OpenMetrics);
        text.push_str("\n# TYPE ");
        text.push_str(family);
        text.push(' ');
        text.push_str(kind.as_str());
        text.push('\n');
    }
}

fn escape(text: &mut String, value: &str, quotes: bool) {
    for character in value.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '"' if quotes => text.push_str("\\\""),
            character => text.push(character),
        }
    }
}

/// Whole numbers without a fraction, as they are easier to read and to compare.
#[allow(
    clippy::cast_possible_truncation,
    reason = "checked to be whole and small"
)]
fn number(text: &mut String, value: f64) {
    let number = if value.fract() == 0.0 && value.abs() < 1e15 {
        (value as i64).to_string()
    } else if value.is_infinite() {
        format!("{}Inf", if value > 0.0 { '+' } else { '-' })
    } else {
        value.to_string()
    };
    text.push_str(&number);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(format: Format) -> String {
        let mut page = Exposition::new(format);
        page.metric("empty", Kind::Gauge, "Has no samples.");
        page.metric("mesh_ends_total", Kind::Counter, "Ends of \"runs\".");
        page.sample(
            "mesh_ends_total",
            &[("account", "a\"b\\c\nd"), ("end", "failed")],
            3.0,
        );
        page.metric("mesh_rate", Kind::Gauge, "A\nrate.");
        page.sample("mesh_rate", &[], 0.25);
        page.finish().0
    }

    #[test]
    fn both_formats_are_as_specified() {
        assert_eq!(
            page(Format::Text),
            "# HELP mesh_ends_total Ends of \"runs\".\n# TYPE mesh_ends_total counter\n\
             mesh_ends_total{account=\"a\\\"b\\\\c\\nd\",end=\"failed\"} 3\n\
             # HELP mesh_rate A\\nrate.\n# TYPE mesh_rate gauge\nmesh_rate 0.25\n"
        );
        assert_eq!(
            page(Format::OpenMetrics),
            "# HELP mesh_ends Ends of \\\"runs\\\".\n# TYPE mesh_ends counter\n\
             mesh_ends_total{account=\"a\\\"b\\\\c\\nd\",end=\"failed\"} 3\n\
             # HELP mesh_rate A\\nrate.\n# TYPE mesh_rate gauge\nmesh_rate 0.25\n# EOF\n"
        );
    }
}
