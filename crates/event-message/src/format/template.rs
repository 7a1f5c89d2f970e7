//! A custom body: a MiniJinja template over the event's fields.
//!
//! Users who may add an endpoint may write templates, so they are restricted. Conditions and loops over fields are
//! permitted; assignments, macros and includes are not, as a few lines could double a text until memory is exhausted.
//! The limits are 20,000 steps and 64 KiB of output. An unknown field is an error, not an empty text. JSON is escaped
//! automatically: `{{ job.name }}` includes the quotes.

use std::io::{self, Write};

use event_filter::expression::outside_strings;
use event_filter::fields;
use mesh_events::Event;
use mesh_events::proto::mesh::cost::v1::CostEvent;
use minijinja::value::{Serde, Value as Jinja};
use minijinja::{AutoEscape, Environment, Error, UndefinedBehavior, filters, tests as is};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use url::Url;

use super::request::{Request, Response, Unsendable};
use super::{Content, Step};

const LONGEST_TEMPLATE: usize = 8 * 1024;
const LONGEST_BODY: usize = 64 * 1024;
const LONGEST_FIELD: usize = 4_000;
const MAX_STEPS: u64 = 20_000;

/// Settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Template {
    /// The template.
    pub body: String,
    /// Content type of the result. JSON types are escaped and validated as JSON, HTML and XML accordingly.
    #[serde(default = "json_type")]
    pub content_type: String,
}

fn json_type() -> String {
    "application/json".to_owned()
}

impl Template {
    pub(super) fn faults(&self) -> Vec<(&'static str, String)> {
        let mut faults = Vec::new();
        let kind = &self.content_type;
        if !kind.contains('/')
            || kind.len() > 100
            || !kind.bytes().all(|b| b.is_ascii_graphic() || b == b' ')
        {
            faults.push(("content_type", "e.g. \"application/json\"".to_owned()));
        }
        if let Err(problem) = self.render(&fields::sample()) {
            faults.push(("body", problem));
        }
        faults
    }

    /// A template that contains the word for another reason waits a few seconds without effect.
    pub(super) fn shows_costs(&self) -> bool {
        self.body.contains("cost")
    }

    pub(super) fn begin(&self, address: &Url, content: &Content<'_>) -> Result<Step, Unsendable> {
        let Content::Event { event, cost, .. } = content else {
            return Err(Unsendable::NotAnEvent);
        };
        let request = Request {
            content_type: self.content_type.clone().into(),
            body: self
                .body_of(event, *cost)
                .map_err(Unsendable::Template)?
                .into(),
            ..Request::json(address, &Value::Null)
        };
        Ok(Step::once(request, Response::by_status))
    }

    /// Renders an event.
    ///
    /// # Errors
    /// The problem, with the line and column of the template.
    fn body_of(&self, event: &Event, cost: Option<&CostEvent>) -> Result<String, String> {
        self.render(&fields::of(event, cost, LONGEST_FIELD))
    }

    fn render(&self, fields: &Value) -> Result<String, String> {
        if self.body.len() > LONGEST_TEMPLATE {
            return Err(format!("at most {LONGEST_TEMPLATE} bytes"));
        }
        check_tags(&self.body)?;
        let environment = self.environment();
        let template = environment
            .template_from_named_str("body", &self.body)
            .map_err(|error| self.problem(&error))?;
        let mut body = Bounded(Vec::new());
        let rendered = template.render_captured_to(Jinja::from(Serde(fields)), &mut body);
        if body.0.len() > LONGEST_BODY {
            return Err(format!("result is longer than {LONGEST_BODY} bytes"));
        }
        rendered.map_err(|error| self.problem(&error)).map(drop)?;
        let body = String::from_utf8(body.0).map_err(|_| "makes no UTF-8".to_owned())?;
        if self.is_json() {
            serde_json::from_str::<serde::de::IgnoredAny>(&body).map_err(|error| {
                format!(
                    "the result is not JSON ({error}); {{{{ … }}}} writes strings with their quotes"
                )
            })?;
        }
        Ok(body)
    }

    fn problem(&self, error: &Error) -> String {
        let what = error.kind().to_string();
        let what = error
            .detail()
            .map_or(what.clone(), |detail| format!("{what}: {detail}"));
        let at = error.range().map(|range| range.start);
        match (
            at.filter(|at| self.body.is_char_boundary(*at)),
            error.line(),
        ) {
            (Some(at), _) => format!("{}: {what}", place(&self.body, at)),
            (None, Some(line)) => format!("line {line}: {what}"),
            (None, None) => what,
        }
    }

    fn is_json(&self) -> bool {
        let kind = self
            .content_type
            .split(';')
            .next()
            .unwrap_or_default()
            .trim();
        kind == "application/json" || kind.ends_with("+json")
    }

    fn environment(&self) -> Environment<'_> {
        let mut environment = Environment::empty();
        let escape = match (self.is_json(), self.content_type.as_str()) {
            (true, _) => AutoEscape::Json,
            (false, kind) if kind.contains("html") || kind.contains("xml") => AutoEscape::Html,
            _ => AutoEscape::None,
        };
        environment.set_auto_escape_callback(move |_| escape.clone());
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        // Adds positions to errors.
        environment.set_debug(true);
        environment.set_fuel(Some(MAX_STEPS));
        environment.set_recursion_limit(50);
        environment.add_filter("json", filters::tojson);
        environment.add_filter("upper", filters::upper);
        environment.add_filter("lower", filters::lower);
        environment.add_filter("trim", filters::trim);
        environment.add_filter("length", filters::length);
        environment.add_filter("default", filters::default);
        environment.add_filter("round", filters::round);
        environment.add_filter("int", filters::int);
        environment.add_filter("join", filters::join);
        environment.add_filter("urlencode", filters::urlencode);
        environment.add_test("none", is::is_none);
        environment.add_test("startingwith", is::is_startingwith);
        environment.add_test("endingwith", is::is_endingwith);
        environment
    }
}

/// Rejects what could grow a text without bound: repetition, and every tag that binds a value except loops over
/// fields.
fn check_tags(template: &str) -> Result<(), String> {
    for (at, _) in template.match_indices("{%") {
        let place = place(template, at);
        let tag = &template[at + 2..];
        let tag = tag.split("%}").next().unwrap_or_default();
        let tag = tag.trim_matches(|c: char| c.is_whitespace() || matches!(c, '-' | '+'));
        let mut words = tag.split_whitespace();
        match words.next().unwrap_or_default() {
            "if" | "elif" | "else" | "endif" | "endfor" => {}
            "for" => {
                let (_, over) = tag.split_once(" in ").unwrap_or_default();
                let is_path = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.');
                if over.trim().is_empty() || !over.trim().chars().all(is_path) {
                    return Err(format!(
                        "{place}: a loop is over a field, e.g. for p in node.partitions"
                    ));
                }
            }
            other => {
                return Err(format!(
                    "{place}: no {other:?} here; there are if, elif, else and for"
                ));
            }
        }
    }
    for opening in ["{{", "{%"] {
        for (at, _) in template.match_indices(opening) {
            let closing = if opening == "{{" { "}}" } else { "%}" };
            let inside = template[at + 2..].split(closing).next().unwrap_or_default();
            if let Some((within, _)) = outside_strings(inside).find(|(_, c)| *c == '*') {
                let place = place(template, at + 2 + within);
                return Err(format!("{place}: no multiplication in templates"));
            }
        }
    }
    Ok(())
}

/// Line and column of a byte offset, from 1.
fn place(template: &str, at: usize) -> String {
    let before = &template[..at];
    let line = before.matches('\n').count() + 1;
    let begin = before.rfind('\n').map_or(0, |end| end + 1);
    let column = before[begin..].chars().count() + 1;
    format!("line {line}, column {column}")
}

/// Accepts slightly more than the limit, then fails.
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let free = (LONGEST_BODY + 1).saturating_sub(self.0.len());
        self.0.extend_from_slice(&bytes[..bytes.len().min(free)]);
        if bytes.len() >= free {
            return Err(io::ErrorKind::WriteZero.into());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use event_filter::sample;
    use mesh_events::EventType;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn template(body: &str) -> Template {
        Template {
            body: body.to_owned(),
            content_type: json_type(),
        }
    }

    fn preview(template: &Template, kind: EventType) -> Result<String, String> {
        template.body_of(&sample::event(kind), Some(&sample::cost()))
    }

    #[test]
    fn json_is_escaped_by_itself() {
        let template = template(
            r#"{"text": {{ "Job " ~ job.id ~ ": " ~ type }}, "job": {{ job.job_id }}, "cost": {{ cost.total }}, "limits": [{% for p in node.partitions %}{{ p }}{% endfor %}]}"#,
        );
        assert_eq!(template.faults(), []);
        let mut event = sample::event(EventType::JobFailed);
        if let Some(mesh_events::proto::mesh::event::v1::event::Payload::Job(payload)) =
            &mut event.payload
        {
            payload.job.as_mut().unwrap().display_id = "1\"},\n{".into();
        }
        let error = template.body_of(&event, None).unwrap_err();
        assert!(
            error.starts_with("line 1, column 83: undefined value"),
            "a job's event has no cost: {error}"
        );
        let template = self::template(r#"{"text": {{ "Job " ~ job.id }}}"#);
        let body = template.body_of(&event, None).unwrap();
        assert_eq!(
            serde_json::from_str::<Value>(&body).unwrap(),
            json!({"text": "Job 1\"},\n{"})
        );
    }

    #[test]
    fn other_types_are_escaped_as_such() {
        let of = |kind: &str, body: &str| {
            let template = Template {
                body: body.to_owned(),
                content_type: kind.to_owned(),
            };
            assert_eq!(template.faults(), []);
            preview(&template, EventType::JobFailed).unwrap()
        };
        assert_eq!(
            of("text/plain", "{{ job.name }} & {{ '<b>' }}"),
            "train & <b>"
        );
        assert_eq!(
            of("text/html", "{{ job.name }}{{ '<b>' }}"),
            "train&lt;b&gt;"
        );
        assert_eq!(
            of(
                "application/x-www-form-urlencoded",
                "a={{ 'b c&' | urlencode }}"
            ),
            "a=b%20c%26"
        );
    }

    #[test]
    fn faults_name_line_and_column() {
        let cases = [
            (
                "{\n\"a\": {{ job.nam }}}",
                "line 2, column 9: undefined value",
            ),
            ("{{ job.name", "line 1, column 8: syntax error"),
            ("{\"a\": \"{{ job.name }}\"}", "the result is not JSON"),
            (
                "{% set a = job.name %}1",
                "line 1, column 1: no \"set\" here",
            ),
            (
                "\n{%- with a = 1 %}{% endwith %}",
                "line 2, column 1: no \"with\" here",
            ),
            (
                "{% macro x() %}{% endmacro %}1",
                "line 1, column 1: no \"macro\" here",
            ),
            ("{% include 'x' %}", "line 1, column 1: no \"include\" here"),
            (
                "{% for a in [job.name ~ job.name] %}{% endfor %}1",
                "line 1, column 1: a loop is over a field",
            ),
            (
                "{% for a in node.partitions recursive %}{% endfor %}1",
                "line 1, column 1: a loop is over a field",
            ),
            (
                "{{ 'x' * 1000000000 }}",
                "line 1, column 8: no multiplication",
            ),
            ("{{ job | nosuch }}", "line 1, column "),
            ("{{ range(9) }}", "line 1, column "),
        ];
        for (body, expected) in cases {
            let faults = template(body).faults();
            assert!(
                faults.len() == 1 && faults[0].1.starts_with(expected),
                "{body}: {faults:?}"
            );
        }
        assert!(
            template(&" ".repeat(9_000)).faults()[0]
                .1
                .starts_with("at most")
        );
    }

    #[test]
    fn work_and_output_are_bounded() {
        let nested = |depth: usize, inner: &str| {
            let begin = "{% for a in job %}".repeat(depth);
            let end = "{% endfor %}".repeat(depth);
            Template {
                body: format!("{begin}{inner}{end}"),
                content_type: "text/plain".to_owned(),
            }
        };
        let steps = nested(8, "").faults();
        assert!(steps[0].1.contains("fuel"), "{steps:?}");
        let output = nested(2, "{{ job | json }}").faults();
        assert!(
            output[0].1.starts_with("result is longer than"),
            "{output:?}"
        );
    }

    proptest! {
        #[test]
        fn any_template_is_refused_or_makes_what_it_says(
            pieces in prop::collection::vec(prop::sample::select(vec![
                "{{", "}}", "{%", "%}", "{#", "#}", " job.name ", " if job ", " for p in job ", "endif", "endfor", " set a = job ", "~", "*", "'", "\"", "[", "]", "x", "1", "-", "|json",
            ]), 0..25),
        ) {
            let template = template(&pieces.concat());
            if template.faults().is_empty() {
                let body = preview(&template, EventType::JobFailed);
                prop_assert!(body.is_err() || serde_json::from_str::<Value>(&body.unwrap()).is_ok());
            }
        }
    }
}
