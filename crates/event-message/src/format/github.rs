//! GitHub: starts a workflow of GitHub Actions, by `repository_dispatch` or `workflow_dispatch`.
//!
//! Limits: `event_type` 100 characters, `client_payload` ten top-level properties and 64 KB, 25 text inputs. A
//! workflow rejects inputs that it does not declare, so they are configured one by one.

use std::collections::BTreeMap;

use event_filter::{Expression, fields};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use url::Url;

use super::request::{Request, Response, Unsendable, join};
use super::{Content, Secret, Step, fit};
use crate::attempt_outcome::{Outcome, RetryAfter};

/// Below the limit of 64 KB.
const MAX_BYTES: usize = 60_000;
/// Limit of GitHub's API. Older servers accept ten.
const MAX_INPUTS: usize = 25;

/// Settings. With `workflow` and `ref` it starts that workflow, otherwise it sends `repository_dispatch`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GitHub {
    /// A token with write access to the repository's contents (`repository_dispatch`) or actions
    /// (`workflow_dispatch`).
    pub token: Secret,
    /// `owner/name`.
    pub repository: String,
    /// `event_type` of a `repository_dispatch`. Default: `slurm.` and the event's type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_type: Option<String>,
    /// File name or number of the workflow to start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow: Option<String>,
    /// Branch or tag to start it on.
    #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
    pub git_ref: Option<String>,
    /// Workflow inputs: names and expressions over the event.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<String, String>,
}

impl GitHub {
    pub(super) fn faults(&self) -> Vec<(&'static str, String)> {
        let mut faults = Vec::new();
        let mut fault = |key, problem: &str| faults.push((key, problem.to_owned()));
        if let Some(problem) = self.token.fault() {
            fault("token", &problem);
        }
        let parts: Vec<&str> = self.repository.split('/').collect();
        if parts.len() != 2 || !parts.iter().all(|part| is_name(part)) {
            fault("repository", "owner/name, e.g. \"physics/pipeline\"");
        }
        if self
            .event_type
            .as_ref()
            .is_some_and(|word| !(1..=100).contains(&word.chars().count()))
        {
            fault("event_type", "from 1 to 100 characters");
        }
        match (&self.workflow, &self.git_ref) {
            (Some(workflow), _) if !is_name(workflow) => {
                fault(
                    "workflow",
                    "the file's name, e.g. \"evaluate.yml\", or the workflow's number",
                );
            }
            (Some(_), None) => fault(
                "ref",
                "missing: the branch or tag whose workflow is started",
            ),
            (None, Some(_)) => fault(
                "ref",
                "only with workflow; repository_dispatch takes the default branch",
            ),
            (None, None) if !self.inputs.is_empty() => {
                fault(
                    "inputs",
                    "only with workflow; repository_dispatch has the whole event in client_payload",
                );
            }
            (Some(_), Some(_)) if self.event_type.is_some() => {
                fault("event_type", "only without workflow");
            }
            _ => {}
        }
        if self.inputs.len() > MAX_INPUTS {
            fault("inputs", &format!("at most {MAX_INPUTS}"));
        }
        for (name, expression) in &self.inputs {
            if let Err(error) = Expression::new(expression) {
                fault("inputs", &format!("{name}: {error}"));
            }
        }
        faults
    }

    /// `client_payload` contains every field. Inputs contain what their expressions refer to.
    pub(super) fn shows_costs(&self) -> bool {
        let mentions = |text: &String| Expression::new(text).is_ok_and(|it| it.mentions("cost"));
        self.workflow.is_none() || self.inputs.values().any(mentions)
    }

    pub(super) fn begin(&self, address: &Url, content: &Content<'_>) -> Result<Step, Unsendable> {
        let Content::Event { event, cost, .. } = content else {
            return Err(Unsendable::NotAnEvent);
        };
        let of = |max| fields::of(event, *cost, max);
        let repository = format!("repos/{}", self.repository);
        let (path, body) = match (&self.workflow, &self.git_ref) {
            (Some(workflow), Some(git_ref)) => (
                format!("{repository}/actions/workflows/{workflow}/dispatches"),
                fit(
                    |scale| json!({"ref": git_ref, "inputs": self.inputs(&of(2_000 / scale))}),
                    small,
                ),
            ),
            _ => {
                let word = self.event_type.clone();
                let word =
                    word.unwrap_or_else(|| fields::cut(&format!("slurm.{}", event.r#type), 99));
                (
                    format!("{repository}/dispatches"),
                    fit(
                        |scale| json!({"event_type": word, "client_payload": client_payload(of(2_000 / scale))}),
                        small,
                    ),
                )
            }
        };
        let request = Request {
            headers: vec![
                ("accept", "application/vnd.github+json".to_owned()),
                ("x-github-api-version", "2022-11-28".to_owned()),
            ],
            ..Request::json(&join(address, &path)?, &body)
        };
        Ok(Step::once(request.bearing(self.token.expose()), judge))
    }

    fn inputs(&self, fields: &Value) -> BTreeMap<&str, String> {
        self.inputs
            .iter()
            .map(|(name, text)| {
                let value = Expression::checked(text).text(fields);
                // A missing field becomes an empty input.
                (
                    name.as_str(),
                    fields::cut(&value.unwrap_or_default(), 2_000),
                )
            })
            .collect()
    }
}

/// Nine properties: the event itself and its groups.
fn client_payload(fields: Value) -> Value {
    let Value::Object(mut fields) = fields else {
        return Value::Null;
    };
    let mut payload = serde_json::Map::new();
    for group in [
        "owner", "actor", "job", "node", "change", "cost", "queue", "capture",
    ] {
        if let Some(value) = fields.remove(group).filter(|value| !value.is_null()) {
            payload.insert(group.to_owned(), value);
        }
    }
    payload.insert("event".to_owned(), fields.into());
    payload.into()
}

fn small(body: &Value) -> bool {
    body.to_string().len() <= MAX_BYTES
}

/// 204 is success. 403 and 429 may be temporary limits, described by their headers.
fn judge(response: &Response) -> Outcome {
    let after = response.retry_after().or_else(|| {
        let none_left = response.header("x-ratelimit-remaining") == Some("0");
        let reset = response.header("x-ratelimit-reset")?.parse().ok()?;
        let at = chrono::DateTime::from_timestamp(reset, 0)?;
        none_left.then_some(RetryAfter::At(at))
    });
    match response.status {
        403 | 429 if after.is_some() => Outcome::Retry { after },
        _ => response.by_status(),
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 100
        && !matches!(text, "." | "..")
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

#[cfg(test)]
mod tests {
    use event_filter::sample;
    use mesh_events::EventType;

    use super::*;

    fn settings() -> GitHub {
        GitHub {
            token: "t".into(),
            repository: "physics/pipeline".into(),
            event_type: None,
            workflow: None,
            git_ref: None,
            inputs: BTreeMap::new(),
        }
    }

    fn request(settings: &GitHub, address: &str) -> Box<Request> {
        let event = sample::event(EventType::JobFailed);
        let content = Content::Event {
            event: &event.into(),
            cost: None,
            replay: None,
            spending: None,
            now: chrono::DateTime::UNIX_EPOCH,
        };
        match settings
            .begin(&Url::parse(address).unwrap(), &content)
            .unwrap()
        {
            Step::Send(request, _) => request,
            Step::Done(verdict) => panic!("{verdict:?}"),
        }
    }

    #[test]
    fn a_repository_gets_the_event_in_at_most_ten_properties() {
        let request = request(&settings(), "https://api.github.com/");
        assert_eq!(
            request.url.as_str(),
            "https://api.github.com/repos/physics/pipeline/dispatches"
        );
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        assert_eq!(body["event_type"], "slurm.job.failed");
        assert_eq!(body["client_payload"]["job"]["id"], "1230_4");
        assert_eq!(body["client_payload"]["event"]["cluster"], "example");
    }

    #[test]
    fn a_workflow_gets_its_inputs_as_texts() {
        let mut settings = settings();
        settings.workflow = Some("evaluate.yml".into());
        settings.git_ref = Some("main".into());
        settings.inputs = [("job", "job.job_id"), ("node", "node.name")]
            .map(|(name, expression)| (name.to_owned(), expression.to_owned()))
            .into();
        assert_eq!(settings.faults(), []);
        let request = request(&settings, "https://github.example.org/api/v3");
        assert_eq!(
            request.url.as_str(),
            "https://github.example.org/api/v3/repos/physics/pipeline/actions/workflows/evaluate.yml/dispatches"
        );
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        assert_eq!(
            body,
            json!({"ref": "main", "inputs": {"job": "1234", "node": ""}})
        );
    }

    #[test]
    fn limits_that_pass_are_waited_for() {
        let answer = |status, headers: &[(&'static str, &str)]| {
            let mut response = Response {
                status,
                ..Response::default()
            };
            for (name, value) in headers {
                response.headers.insert(*name, value.parse().unwrap());
            }
            judge(&response)
        };
        assert_eq!(answer(204, &[]), Outcome::Delivered);
        assert!(matches!(answer(403, &[]), Outcome::Permanent { .. }));
        assert!(matches!(
            answer(
                403,
                &[("x-ratelimit-remaining", "3"), ("x-ratelimit-reset", "9")]
            ),
            Outcome::Permanent { .. }
        ));
        assert_eq!(
            answer(403, &[("retry-after", "60")]),
            Outcome::Retry {
                after: Some(RetryAfter::fractional(60.0))
            }
        );
        assert!(matches!(
            answer(
                403,
                &[
                    ("x-ratelimit-remaining", "0"),
                    ("x-ratelimit-reset", "1763760000")
                ]
            ),
            Outcome::Retry {
                after: Some(RetryAfter::At(_))
            }
        ));
        assert!(matches!(answer(422, &[]), Outcome::Permanent { .. }));
    }

    #[test]
    fn settings_that_go_somewhere_else_are_refused() {
        for repository in ["physics", "physics/pipeline/x", "../x", "a/..", "a/b?c", ""] {
            let settings = GitHub {
                repository: repository.into(),
                ..settings()
            };
            assert_eq!(settings.faults()[0].0, "repository", "{repository}");
        }
        let settings = GitHub {
            workflow: Some("a/b".into()),
            git_ref: Some("main".into()),
            ..settings()
        };
        assert_eq!(settings.faults()[0].0, "workflow");
    }
}
