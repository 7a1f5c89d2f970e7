//! Expressions over an event's fields, for filters and values made of events.
//!
//! The language is MiniJinja's without filters and functions: `cost.total > 100 and job.partition == "gpu"`. An
//! expression is checked when it is saved: syntax, field names, and a trial on an event with all fields. Evaluation
//! is limited to 1,000 steps, and texts cannot be multiplied.
//!
//! An expression over fields that an event does not have (`job.name` of a node) is false.

use std::sync::{Arc, LazyLock};

use minijinja::value::{Serde, ValueKind};
use minijinja::{Environment, Error, UndefinedBehavior, Value, tests as is};
use serde_json::Value as Json;

use crate::fields;

/// Maximum length of an expression.
const MAX_EXPRESSION_CHARS: usize = 1_000;
const MAX_STEPS: u64 = 1_000;
/// The group of what a sender gives with an event.
const DATA: &str = "data";

static ENVIRONMENT: LazyLock<Environment<'static>> = LazyLock::new(environment);

/// A checked expression.
#[derive(Clone)]
pub struct Expression {
    text: Arc<str>,
    /// `None`: it is invalid.
    compiled: Option<Arc<minijinja::Expression<'static, 'static>>>,
}

/// Why an expression is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidExpression {
    /// It is too long.
    #[error("at most {MAX_EXPRESSION_CHARS} characters")]
    TooLong,
    /// Syntax error.
    #[error("character {at}: {problem}")]
    Syntax {
        /// Position of the error, in characters from 1.
        at: usize,
        /// Description of the error.
        problem: String,
    },
    /// Unknown field.
    #[error("character {at}: no field {name:?}; there are {allowed}")]
    Field {
        /// Position of the error, in characters from 1.
        at: usize,
        /// The field as written.
        name: String,
        /// Valid fields of its group, or the groups.
        allowed: String,
    },
    /// It fails even on an event that has every field.
    #[error("{0}")]
    Fails(String),
}

impl Expression {
    /// Checks an expression.
    ///
    /// # Errors
    /// The problem, its position, and the valid fields.
    pub fn new(text: &str) -> Result<Self, InvalidExpression> {
        Self::over(text, &fields::sample())
    }

    /// Checks an expression that may also use the group `data`, whose fields are known only when an event has arrived. An expression
    /// that uses it is not tried on a sample.
    ///
    /// # Errors
    /// As [`Expression::new`].
    pub fn with_data(text: &str) -> Result<Self, InvalidExpression> {
        let mut sample = fields::sample();
        if let Some(groups) = sample.as_object_mut() {
            groups.insert(DATA.to_owned(), Json::Null);
        }
        Self::over(text, &sample)
    }

    fn over(text: &str, sample: &Json) -> Result<Self, InvalidExpression> {
        if text.chars().count() > MAX_EXPRESSION_CHARS {
            return Err(InvalidExpression::TooLong);
        }
        let compiled = ENVIRONMENT
            .compile_expression_owned(text.to_owned())
            .map_err(|error| InvalidExpression::Syntax {
                at: position(text, error.range().map_or(0, |range| range.start)),
                problem: error.detail().unwrap_or("not an expression").to_owned(),
            })?;
        if let Some(at) = outside_strings(text).find(|(_, c)| *c == '*') {
            return Err(InvalidExpression::Syntax {
                at: position(text, at.0),
                problem: "no multiplication; compare with the product".to_owned(),
            });
        }
        let mut names: Vec<_> = compiled.undeclared_variables(true).into_iter().collect();
        names.extend(compiled.undeclared_variables(false));
        names.sort();
        for name in names {
            check_field(text, &name, sample)?;
        }
        let expression = Self {
            text: text.into(),
            compiled: Some(Arc::new(compiled)),
        };
        if !(sample[DATA].is_null() && expression.mentions(DATA)) {
            expression
                .evaluate(sample)
                .map_err(InvalidExpression::Fails)?;
        }
        Ok(expression)
    }

    /// Loads an expression that was checked when it was saved. An invalid one has no value.
    pub fn checked(text: &str) -> Self {
        Self {
            text: text.into(),
            compiled: ENVIRONMENT
                .compile_expression_owned(text.to_owned())
                .ok()
                .map(Arc::new),
        }
    }

    /// True if it holds for an event with these fields.
    pub fn holds(&self, fields: &Json) -> bool {
        self.value(fields).is_some_and(|value| value.is_true())
    }

    /// Its value as text. `None` if the event does not have the fields.
    pub fn text(&self, fields: &Json) -> Option<String> {
        self.text_or_problem(fields).ok()
    }

    /// Its value as text, or why it has none.
    ///
    /// # Errors
    /// The problem, for people.
    pub fn text_or_problem(&self, fields: &Json) -> Result<String, String> {
        let value = self.evaluate(fields)?;
        match value.kind() {
            ValueKind::None | ValueKind::Undefined => Err("the event has no such field".into()),
            ValueKind::Map | ValueKind::Seq | ValueKind::Iterable => {
                serde_json::to_string(&value).map_err(|error| error.to_string())
            }
            _ => Ok(value.to_string()),
        }
    }

    fn value(&self, fields: &Json) -> Option<Value> {
        self.evaluate(fields).ok()
    }

    fn evaluate(&self, fields: &Json) -> Result<Value, String> {
        let compiled = self.compiled.as_ref().ok_or("not an expression")?;
        let value = compiled.eval(Value::from(Serde(fields)));
        value.map_err(|error| problem(&error))
    }

    /// True if it refers to a field or group of this name.
    pub fn mentions(&self, name: &str) -> bool {
        self.compiled
            .as_ref()
            .is_some_and(|compiled| compiled.undeclared_variables(false).contains(name))
    }

    /// The source text.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl std::fmt::Debug for Expression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Expression({:?})", self.text)
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Expression {}

fn environment() -> Environment<'static> {
    let mut environment = Environment::empty();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_fuel(Some(MAX_STEPS));
    environment.set_recursion_limit(50);
    environment.add_test("none", is::is_none);
    environment.add_test("startingwith", is::is_startingwith);
    environment.add_test("endingwith", is::is_endingwith);
    environment
}

fn check_field(text: &str, name: &str, sample: &Json) -> Result<(), InvalidExpression> {
    let mut found = sample;
    for part in name.split('.') {
        match found.as_object() {
            Some(group) => match group.get(part) {
                Some(value) => found = value,
                None => {
                    let mut allowed: Vec<_> = group.keys().map(String::as_str).collect();
                    allowed.sort_unstable();
                    return Err(InvalidExpression::Field {
                        at: position(text, text.find(name).unwrap_or(0)),
                        name: name.to_owned(),
                        allowed: allowed.join(", "),
                    });
                }
            },
            // Methods and elements of lists: the trial detects their errors.
            None => return Ok(()),
        }
    }
    Ok(())
}

fn problem(error: &Error) -> String {
    let what = error.kind().to_string();
    error
        .detail()
        .map_or(what.clone(), |detail| format!("{what}: {detail}"))
}

/// Number of the character at a byte offset, from 1.
fn position(text: &str, byte: usize) -> usize {
    text.char_indices().take_while(|(at, _)| *at < byte).count() + 1
}

/// The characters outside string literals, with their byte offsets.
pub fn outside_strings(text: &str) -> impl Iterator<Item = (usize, char)> + '_ {
    let mut quote = None;
    let mut escaped = false;
    text.char_indices().filter(move |(_, c)| {
        if let Some(end) = quote {
            if escaped {
                escaped = false;
            } else if *c == '\\' {
                escaped = true;
            } else if *c == end {
                quote = None;
            }
            false
        } else if matches!(c, '"' | '\'') {
            quote = Some(*c);
            false
        } else {
            true
        }
    })
}

#[cfg(test)]
mod tests {
    use mesh_events::EventType;
    use proptest::prelude::*;

    use super::*;
    use crate::sample;

    fn holds(expression: &str, kind: EventType) -> bool {
        let event = sample::event(kind);
        Expression::new(expression)
            .unwrap()
            .holds(&fields::of(&event, None, 1_000))
    }

    #[test]
    fn expressions_decide_by_fields() {
        let cases = [
            ("job.exit_code == 1", EventType::JobFailed, true),
            ("job.exit_code > 1", EventType::JobFailed, false),
            (
                "job.array_job_id == 1230 and job.gpus >= 2",
                EventType::JobFailed,
                true,
            ),
            ("job.array_job_id is none", EventType::JobFailed, false),
            (
                "type in ['job.failed', 'job.timeout']",
                EventType::JobFailed,
                true,
            ),
            (
                "owner.account == 'physics' and not late",
                EventType::JobFailed,
                true,
            ),
            ("job.name is startingwith 'tr'", EventType::JobFailed, true),
            ("cost.total > 4.1", EventType::CostFinalized, true),
            ("cost.total > 4.2", EventType::CostFinalized, false),
            ("'gpu' in node.partitions", EventType::NodeDown, true),
            ("job.exit_code != 0", EventType::NodeDown, false),
            ("not job.exit_code", EventType::NodeDown, false),
            (
                "node.name == 'n1' or job.exit_code == 1",
                EventType::NodeDown,
                true,
            ),
            ("category == 'node'", EventType::NodeDown, true),
        ];
        for (expression, kind, expected) in cases {
            assert_eq!(holds(expression, kind), expected, "{expression} on {kind}");
        }
    }

    #[test]
    fn faults_name_place_and_fields() {
        let cases = [
            (
                "job.exit_cod > 1",
                "character 1: no field \"job.exit_cod\"; there are array_job_id, array_task_id",
            ),
            ("late and jobs.name == 'x'", "character 10: no field \"jobs"),
            ("job.name ==", "character 10: unexpected end of input"),
            ("cost.total * 2 > 5", "character 12: no multiplication"),
            ("job.name|upper == 'X'", "unknown filter"),
            ("range(10)", "character 1: no field \"range\""),
            ("job.name.upper() == 'X'", "unknown method"),
            ("job.name > ", "character 10: "),
            ("", "character 1: "),
        ];
        for (expression, expected) in cases {
            let error = Expression::new(expression).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{expression}: {error}");
        }
        assert_eq!(
            Expression::new(&"1+".repeat(600)),
            Err(InvalidExpression::TooLong)
        );
    }

    #[test]
    fn a_star_in_a_text_is_no_multiplication() {
        assert!(Expression::new(r"job.name == 'a*b\'*' or job.name == '*'").is_ok());
    }

    #[test]
    fn values_become_inputs() {
        let fields = fields::of(&sample::event(EventType::JobFailed), None, 1_000);
        let text = |expression: &str| Expression::new(expression).unwrap().text(&fields);
        assert_eq!(text("job.id").as_deref(), Some("1230_4"));
        assert_eq!(text("job.job_id").as_deref(), Some("1234"));
        assert_eq!(
            text("job.name ~ '@' ~ cluster").as_deref(),
            Some("train@example")
        );
        assert_eq!(text("node.name"), None);
    }

    proptest! {
        #[test]
        fn any_text_is_refused_or_runs(text in "[a-z0-9.()'\"<>=!~+|\\[\\] -]{0,60}") {
            if let Ok(expression) = Expression::new(&text) {
                for kind in [EventType::JobFailed, EventType::NodeDown] {
                    expression.holds(&fields::of(&sample::event(kind), None, 100));
                }
            }
        }
    }
}
