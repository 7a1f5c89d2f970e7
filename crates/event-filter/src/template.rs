//! Texts with expressions in them: `{{ job.name }}-again`.
//!
//! A template has no statements, filters or escapes: a value is written as it is, byte for byte. An expression without a
//! value is an error, not an empty text.

use serde_json::Value;

use crate::expression::{Expression, InvalidExpression};

/// Maximum length of a rendered text in bytes.
const MAX_RENDERED_BYTES: usize = 32 * 1024;

/// A checked template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    source: String,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Expression(Expression),
}

/// Why a template is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTemplate {
    /// An expression does not end.
    #[error("`{{{{` without `}}}}`")]
    Open,
    /// A statement or a comment.
    #[error("no `{{%` and no `{{#`: only `{{{{ expression }}}}`")]
    Statement,
    /// An invalid expression.
    #[error("{{{{{text}}}}}: {source}")]
    Expression {
        /// The expression.
        text: String,
        /// Why it is invalid.
        source: InvalidExpression,
    },
}

impl Template {
    /// Checks a template. Its expressions may use the group `data`.
    ///
    /// # Errors
    /// The problem and its place.
    pub fn new(source: &str) -> Result<Self, InvalidTemplate> {
        let mut parts = Vec::new();
        let mut rest = source;
        while let Some((text, after)) = rest.split_once("{{") {
            add_text(&mut parts, text)?;
            let (expression, after) = after.split_once("}}").ok_or(InvalidTemplate::Open)?;
            let checked = Expression::with_data(expression.trim());
            parts.push(Part::Expression(checked.map_err(|source| {
                InvalidTemplate::Expression {
                    text: expression.to_owned(),
                    source,
                }
            })?));
            rest = after;
        }
        add_text(&mut parts, rest)?;
        Ok(Self {
            source: source.to_owned(),
            parts,
        })
    }

    /// Renders it with the fields of an event.
    ///
    /// # Errors
    /// The problem, for people: an expression has no value, or the text is too long.
    pub fn render(&self, fields: &Value) -> Result<String, String> {
        let mut rendered = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => rendered.push_str(text),
                Part::Expression(expression) => {
                    let value = expression.text_or_problem(fields);
                    let value = value
                        .map_err(|problem| format!("{{{{ {} }}}}: {problem}", expression.as_str()));
                    rendered.push_str(&value?);
                }
            }
            if rendered.len() > MAX_RENDERED_BYTES {
                return Err(format!("longer than {MAX_RENDERED_BYTES} bytes"));
            }
        }
        Ok(rendered)
    }

    /// The source text.
    pub fn as_str(&self) -> &str {
        &self.source
    }
}

fn add_text(parts: &mut Vec<Part>, text: &str) -> Result<(), InvalidTemplate> {
    if text.contains("{%") || text.contains("{#") {
        return Err(InvalidTemplate::Statement);
    }
    if !text.is_empty() {
        parts.push(Part::Text(text.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use mesh_events::EventType;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::{fields, sample};

    fn render(template: &str, fields: &Value) -> Result<String, String> {
        Template::new(template).unwrap().render(fields)
    }

    #[test]
    fn expressions_are_replaced_by_their_values() {
        let event = fields::of(&sample::event(EventType::JobFailed), None, 1_000);
        assert_eq!(
            render("{{ job.name }}-again of {{owner.user}}", &event),
            Ok("train-again of alice".into())
        );
        assert_eq!(
            render("{{ 30 if job.gpus > 4 else 240 }}m", &event),
            Ok("240m".into())
        );
        let given = json!({"data": {"size": 7, "key": "a b"}});
        assert_eq!(
            render("{{ data.key }}:{{ data.size }}", &given),
            Ok("a b:7".into())
        );
    }

    #[test]
    fn a_field_without_a_value_is_an_error() {
        let given = json!({"data": {}, "job": null});
        assert!(render("x{{ data.key }}", &given).is_err());
        assert!(render("{{ job.name }}", &given).is_err());
    }

    #[test]
    fn invalid_templates_are_refused() {
        for template in ["{{ job.name", "{% if late %}", "{{ job.nam }}"] {
            assert!(Template::new(template).is_err(), "{template}");
        }
    }

    proptest! {
        #[test]
        fn a_value_arrives_byte_for_byte(value in "\\PC{0,200}|[\\n\\t'\"$`{}%#;|& -~]{0,200}") {
            let given = json!({"data": {"value": value}});
            prop_assert_eq!(render("{{ data.value }}", &given), Ok(value));
        }
    }
}
