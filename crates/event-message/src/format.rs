//! The request for each target, and the meaning of its response.
//!
//! Each format is a pure function from content to requests, and from responses to outcomes: a chat may respond 200
//! and still fail. Most formats need one request; a direct message in Slack needs three. So a delivery is an
//! [`Exchange`]: it yields a request, takes the response, and yields another request or the outcome. Size limits are
//! met by repeating the layout with less text until it fits.

mod cloudevents;
mod content;
mod discord;
mod github;
mod pagerduty;
mod preview;
mod request;
mod secret;
mod slack;
mod slack_api;
mod teams;
mod template;

use std::io;
use std::path::Path;

use mesh_events::{Event, EventType};
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use url::Url;

use self::slack_api::SlackExchange;
use crate::attempt_outcome::Outcome;
use crate::message;

pub use content::{Content, Topic};
pub use github::GitHub;
pub use pagerduty::{Incident, PagerDuty};
pub use preview::Previewed;
pub use request::{Method, ProviderState, Request, Response, StateUpdate, Unsendable, Verdict};
pub use secret::Secret;
pub use slack_api::SlackApi;
pub use template::Template;

/// A format with its settings: `"discord"`, or a table whose `type` names it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum Format {
    /// A CloudEvent as structured JSON, signed.
    #[default]
    #[serde(rename = "cloudevents")]
    CloudEvents,
    /// A message for a Slack incoming webhook.
    Slack,
    /// Messages of a Slack app's bot: channels, direct messages, updated messages.
    SlackApi(SlackApi),
    /// A card for a Microsoft Teams workflow.
    Teams,
    /// A message for a Discord webhook.
    Discord,
    /// Incidents that are triggered and resolved.
    #[serde(rename = "pagerduty")]
    PagerDuty(PagerDuty),
    /// Starts a workflow of GitHub Actions.
    #[serde(rename = "github")]
    GitHub(GitHub),
    /// A custom body.
    Template(Template),
}

/// Whether requests carry a Standard Webhooks signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signed {
    /// Always.
    Always,
    /// If a secret is configured.
    Maybe,
    /// The target supports no signatures: its URL or a token is the secret.
    Never,
}

impl Format {
    /// Value in configurations.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::CloudEvents => "cloudevents",
            Self::Slack => "slack",
            Self::SlackApi(_) => "slack-api",
            Self::Teams => "teams",
            Self::Discord => "discord",
            Self::PagerDuty(_) => "pagerduty",
            Self::GitHub(_) => "github",
            Self::Template(_) => "template",
        }
    }

    /// True for chats: old events are counted instead of sent, and requests are sequential to keep their order.
    pub const fn is_chat(&self) -> bool {
        match self {
            Self::Slack | Self::SlackApi(_) | Self::Teams | Self::Discord => true,
            Self::CloudEvents | Self::PagerDuty(_) | Self::GitHub(_) | Self::Template(_) => false,
        }
    }

    /// True if a test sends a greeting instead of a sample event.
    pub const fn greets(&self) -> bool {
        self.is_chat() || matches!(self, Self::PagerDuty(_))
    }

    /// True if deliveries must stay in order: people read chats in sequence, and an incident is resolved after it was
    /// triggered.
    pub const fn is_ordered(&self) -> bool {
        self.is_chat() || matches!(self, Self::PagerDuty(_))
    }

    /// True if one message is updated instead of sending several.
    pub const fn keeps_current(&self) -> bool {
        matches!(self, Self::SlackApi(settings) if settings.current)
    }

    /// True if messages go to the owners of jobs, where they can be found.
    pub const fn writes_to_owners(&self) -> bool {
        matches!(self, Self::SlackApi(settings) if settings.direct)
    }

    /// Whether requests are signed.
    pub const fn signed(&self) -> Signed {
        match self {
            Self::CloudEvents => Signed::Always,
            Self::Template(_) => Signed::Maybe,
            Self::Slack
            | Self::SlackApi(_)
            | Self::Teams
            | Self::Discord
            | Self::PagerDuty(_)
            | Self::GitHub(_) => Signed::Never,
        }
    }

    /// True if the path of the endpoint's URL is a secret.
    pub const fn address_is_secret(&self) -> bool {
        match self {
            Self::Slack | Self::Teams | Self::Discord => true,
            Self::CloudEvents
            | Self::SlackApi(_)
            | Self::PagerDuty(_)
            | Self::GitHub(_)
            | Self::Template(_) => false,
        }
    }

    /// Default URL.
    pub const fn address(&self) -> Option<&'static str> {
        match self {
            Self::SlackApi(_) => Some("https://slack.com/api/"),
            Self::PagerDuty(_) => Some("https://events.pagerduty.com/v2/enqueue"),
            Self::GitHub(_) => Some("https://api.github.com/"),
            _ => None,
        }
    }

    /// Types of an endpoint that names none. `None`: all.
    pub const fn default_types(&self) -> Option<&'static [EventType]> {
        match self {
            Self::PagerDuty(_) => Some(pagerduty::DEFAULT_TYPES),
            format if format.is_chat() => Some(message::DEFAULT_TYPES),
            _ => None,
        }
    }

    /// True if the content for starts and ends includes their cost, so that they wait for it.
    pub fn shows_costs(&self) -> bool {
        match self {
            Self::CloudEvents => false,
            Self::Slack | Self::SlackApi(_) | Self::Teams | Self::Discord | Self::PagerDuty(_) => {
                true
            }
            Self::GitHub(settings) => settings.shows_costs(),
            Self::Template(settings) => settings.shows_costs(),
        }
    }

    /// True if the format has content for an event.
    pub fn takes(&self, kind: EventType, event: &Event) -> bool {
        match self {
            Self::PagerDuty(settings) => settings.takes(kind, event),
            format if format.is_chat() => message::of(event, None).is_some(),
            _ => true,
        }
    }

    /// Faults of the settings: key and problem.
    pub fn faults(&self, address: &Url) -> Vec<(&'static str, String)> {
        match self {
            Self::CloudEvents | Self::Slack => Vec::new(),
            Self::SlackApi(settings) => settings.faults(),
            Self::Teams => teams::faults(address),
            Self::Discord => discord::faults(address),
            Self::PagerDuty(settings) => settings.faults(),
            Self::GitHub(settings) => settings.faults(),
            Self::Template(settings) => settings.faults(),
        }
    }

    /// Secrets of the settings, by key.
    pub fn secrets(&self) -> Vec<(&'static str, &Secret)> {
        match self {
            Self::SlackApi(settings) => vec![("token", &settings.token)],
            Self::PagerDuty(settings) => vec![("routing_key", &settings.routing_key)],
            Self::GitHub(settings) => vec![("token", &settings.token)],
            Self::CloudEvents | Self::Slack | Self::Teams | Self::Discord | Self::Template(_) => {
                Vec::new()
            }
        }
    }

    /// Secrets of the settings for modification: they are stored encrypted, apart from the settings.
    pub fn secrets_mut(&mut self) -> Vec<(&'static str, &mut Secret)> {
        match self {
            Self::SlackApi(settings) => vec![("token", &mut settings.token)],
            Self::PagerDuty(settings) => vec![("routing_key", &mut settings.routing_key)],
            Self::GitHub(settings) => vec![("token", &mut settings.token)],
            Self::CloudEvents | Self::Slack | Self::Teams | Self::Discord | Self::Template(_) => {
                Vec::new()
            }
        }
    }

    /// Reads secrets from files. Only for the operator's configuration: an API must reject files (see
    /// [`Secret::file`]).
    ///
    /// # Errors
    /// Key and problem of each file that cannot be read.
    pub fn read_secrets(
        &mut self,
        read: impl Fn(&Path) -> io::Result<String>,
    ) -> Result<(), Vec<(&'static str, String)>> {
        let problems: Vec<_> = self
            .secrets_mut()
            .into_iter()
            .filter_map(|(name, secret)| secret.read(&read).err().map(|problem| (name, problem)))
            .collect();
        if problems.is_empty() {
            Ok(())
        } else {
            Err(problems)
        }
    }

    /// Keys of the provider state to load for [`Format::begin`].
    pub fn keys(&self, content: &Content<'_>) -> Vec<String> {
        match self {
            Self::SlackApi(settings) => settings.keys(content),
            Self::PagerDuty(settings) => settings.keys(content),
            _ => Vec::new(),
        }
    }

    /// Starts an exchange.
    ///
    /// # Errors
    /// If the format cannot express the content.
    pub fn begin(
        &self,
        address: &Url,
        content: &Content<'_>,
        state: &ProviderState,
    ) -> Result<Step, Unsendable> {
        match self {
            Self::CloudEvents => cloudevents::begin(address, content),
            Self::Slack => slack::begin(address, content),
            Self::SlackApi(settings) => settings.begin(address, content, state),
            Self::Teams => teams::begin(address, content),
            Self::Discord => discord::begin(address, content),
            Self::PagerDuty(settings) => settings.begin(address, content, state),
            Self::GitHub(settings) => settings.begin(address, content),
            Self::Template(settings) => settings.begin(address, content),
        }
    }
}

/// The next step of an exchange.
#[derive(Debug)]
pub enum Step {
    /// Send this request, then pass the response to [`Exchange::answered`].
    Send(Box<Request>, Exchange),
    /// The exchange is complete.
    Done(Verdict),
}

impl Step {
    /// An exchange of a single request.
    fn once(request: Request, judge: fn(&Response) -> Outcome) -> Self {
        Self::once_keeping(request, judge, Vec::new())
    }

    /// Like [`Step::once`], storing provider state on success.
    fn once_keeping(
        request: Request,
        judge: fn(&Response) -> Outcome,
        keep: Vec<StateUpdate>,
    ) -> Self {
        Self::Send(Box::new(request), Exchange(Waiting::Once { judge, keep }))
    }

    fn talk(request: Request, talk: SlackExchange) -> Self {
        Self::Send(Box::new(request), Exchange(Waiting::Slack(Box::new(talk))))
    }
}

/// An exchange that waits for a response.
#[derive(Debug)]
pub struct Exchange(Waiting);

#[derive(Debug)]
enum Waiting {
    Once {
        judge: fn(&Response) -> Outcome,
        keep: Vec<StateUpdate>,
    },
    Slack(Box<SlackExchange>),
}

impl Exchange {
    /// Processes a response.
    pub fn answered(self, response: &Response) -> Step {
        match self.0 {
            Waiting::Once { judge, keep } => {
                let verdict = Verdict::of(judge(response), response);
                if verdict.outcome == Outcome::Delivered {
                    Step::Done(verdict.keeping(keep))
                } else {
                    Step::Done(verdict)
                }
            }
            Waiting::Slack(talk) => talk.answered(response),
        }
    }
}

/// The first of ever shorter layouts that fits, or the shortest.
fn fit<T>(mut layout: impl FnMut(usize) -> T, fits: impl Fn(&T) -> bool) -> T {
    let mut scale = 1;
    loop {
        let laid_out = layout(scale);
        if scale >= 64 || fits(&laid_out) {
            return laid_out;
        }
        scale *= 2;
    }
}

/// The table form, deserialized by the derive.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
enum Written {
    #[serde(rename = "cloudevents")]
    CloudEvents {},
    Slack {},
    SlackApi(SlackApi),
    Teams {},
    Discord {},
    #[serde(rename = "pagerduty")]
    PagerDuty(PagerDuty),
    #[serde(rename = "github")]
    GitHub(GitHub),
    Template(Template),
}

impl From<Written> for Format {
    fn from(written: Written) -> Self {
        match written {
            Written::CloudEvents {} => Self::CloudEvents,
            Written::Slack {} => Self::Slack,
            Written::SlackApi(settings) => Self::SlackApi(settings),
            Written::Teams {} => Self::Teams,
            Written::Discord {} => Self::Discord,
            Written::PagerDuty(settings) => Self::PagerDuty(settings),
            Written::GitHub(settings) => Self::GitHub(settings),
            Written::Template(settings) => Self::Template(settings),
        }
    }
}

impl<'de> Deserialize<'de> for Format {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WordOrTable;

        impl<'de> Visitor<'de> for WordOrTable {
            type Value = Format;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(
                    "the name of a format, or a table with its `type`: cloudevents, slack, slack-api, teams, discord, pagerduty, github, template",
                )
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<Format, E> {
                match word {
                    "cloudevents" => Ok(Format::CloudEvents),
                    "slack" => Ok(Format::Slack),
                    "teams" => Ok(Format::Teams),
                    "discord" => Ok(Format::Discord),
                    "slack-api" | "pagerduty" | "github" | "template" => Err(E::custom(format!(
                        "format {word:?} has settings: write format = {{ type = {word:?}, … }}"
                    ))),
                    _ => Err(E::invalid_value(de::Unexpected::Str(word), &self)),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Format, A::Error> {
                Written::deserialize(de::value::MapAccessDeserializer::new(map)).map(Format::from)
            }
        }

        deserializer.deserialize_any(WordOrTable)
    }
}

#[cfg(test)]
mod tests;
