//! What an endpoint is sent, and what its answer means.
//!
//! Each format is a pure function from what happened to requests, and a pure judgement of answers: a chat may say 200 and mean no. Most
//! need one request; a direct message in Slack needs three. So a delivery is an [`Exchange`]: it gives a request, takes the answer, and
//! gives another or says what came of it. Limits of size are kept by laying the message out again with less text until it fits.

mod cloudevents;
mod discord;
mod exchange;
mod github;
mod pagerduty;
mod preview;
mod secret;
mod slack;
mod slack_api;
mod teams;
mod template;

use std::io;
use std::path::Path;

use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::cost::v1::CostEvent;
use mesh_events::{Event, EventType};
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use url::Url;

use super::decoded_event::DecodedEvent;
use super::message::{self, Message};

pub use exchange::{
    Exchange, Method, ProviderState, Request, Response, StateUpdate, Step, Unsendable, Verdict,
};
pub use github::GitHub;
pub use pagerduty::{Incident, PagerDuty};
pub use preview::Previewed;
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
    /// Messages by a Slack app's bot: channels, direct messages, messages kept current.
    SlackApi(SlackApi),
    /// A card for a Microsoft Teams workflow.
    Teams,
    /// A message for a Discord webhook.
    Discord,
    /// Incidents that are opened and closed.
    #[serde(rename = "pagerduty")]
    PagerDuty(PagerDuty),
    /// A workflow of GitHub Actions.
    #[serde(rename = "github")]
    GitHub(GitHub),
    /// A body of one's own.
    Template(Template),
}

/// Whether requests carry a Standard Webhooks signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signed {
    /// Always.
    Always,
    /// If there is a secret.
    Maybe,
    /// The target knows no signatures: its address or a token is the secret.
    Never,
}

/// What is told.
#[derive(Clone, Copy, Debug)]
pub enum Content<'a> {
    /// An event, with its cost if that is known.
    Event {
        /// The event.
        event: &'a DecodedEvent,
        /// `cost.estimated` of a start, `cost.finalized` of an end.
        cost: Option<&'a CostEvent>,
        /// The replay that tells it once more.
        replay: Option<&'a str>,
        /// When it is told.
        now: DateTime<Utc>,
    },
    /// A message of the mesh's own.
    Message {
        /// Its id, which stays the same for every attempt.
        id: &'a str,
        /// What it says.
        message: &'a Message,
        /// What it is one of several messages about.
        topic: Option<Topic<'a>>,
    },
}

/// What several messages are about, of which only the last counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topic<'a> {
    /// The same for all of them.
    pub key: &'a str,
    /// Counts them.
    pub number: u64,
    /// Whom they are for, if known.
    pub email: Option<&'a str>,
}

impl Content<'_> {
    /// Id of what is told.
    pub fn id(&self) -> &str {
        match self {
            Self::Event { event, .. } => &event.id,
            Self::Message { id, .. } => id,
        }
    }

    /// As a message for people. `None` for events that no chat shows.
    fn message(&self) -> Option<Message> {
        match self {
            Self::Event {
                event, cost, now, ..
            } => Some(message::of(event, *cost)?.waited(event, *now)),
            Self::Message { message, .. } => Some((*message).clone()),
        }
    }
}

impl Format {
    /// Its word in configurations.
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

    /// True if people read it: old events are counted instead of sent, and one request at a time keeps the order.
    pub const fn is_chat(&self) -> bool {
        matches!(
            self,
            Self::Slack | Self::SlackApi(_) | Self::Teams | Self::Discord
        )
    }

    /// True if a test sends a greeting; pipelines get a sample.
    pub const fn greets(&self) -> bool {
        self.is_chat() || matches!(self, Self::PagerDuty(_))
    }

    /// True if what comes later is not to overtake what came before: people read it in order, and an incident is closed after it was opened.
    pub const fn is_ordered(&self) -> bool {
        self.is_chat() || matches!(self, Self::PagerDuty(_))
    }

    /// True if one message is kept current instead of sending several.
    pub const fn keeps_current(&self) -> bool {
        matches!(self, Self::SlackApi(settings) if settings.current)
    }

    /// Whether requests are signed.
    pub const fn signed(&self) -> Signed {
        match self {
            Self::CloudEvents => Signed::Always,
            Self::Template(_) => Signed::Maybe,
            _ => Signed::Never,
        }
    }

    /// True if the path of the endpoint's address is a secret.
    pub const fn address_is_secret(&self) -> bool {
        matches!(self, Self::Slack | Self::Teams | Self::Discord)
    }

    /// Where to send if the endpoint names no address.
    pub const fn address(&self) -> Option<&'static str> {
        match self {
            Self::SlackApi(_) => Some("https://slack.com/api/"),
            Self::PagerDuty(_) => Some("https://events.pagerduty.com/v2/enqueue"),
            Self::GitHub(_) => Some("https://api.github.com/"),
            _ => None,
        }
    }

    /// Types of an endpoint that names none; `None`: all.
    pub const fn default_types(&self) -> Option<&'static [EventType]> {
        match self {
            Self::PagerDuty(_) => Some(pagerduty::DEFAULT_TYPES),
            format if format.is_chat() => Some(message::DEFAULT_TYPES),
            _ => None,
        }
    }

    /// True if what it tells of starts and ends has their cost in it, so that these wait for it.
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

    /// True if there is something to send for an event.
    pub fn takes(&self, kind: EventType, event: &Event) -> bool {
        match self {
            Self::PagerDuty(settings) => settings.takes(kind, event),
            format if format.is_chat() => message::of(event, None).is_some(),
            _ => true,
        }
    }

    /// What is wrong with the settings: key and problem.
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

    /// The secrets among the settings, by the name of their field.
    pub fn secrets(&self) -> Vec<(&'static str, &Secret)> {
        match self {
            Self::SlackApi(settings) => vec![("token", &settings.token)],
            Self::PagerDuty(settings) => vec![("routing_key", &settings.routing_key)],
            Self::GitHub(settings) => vec![("token", &settings.token)],
            _ => Vec::new(),
        }
    }

    /// The same, to be set: what is stored has them sealed, beside the settings.
    pub fn secrets_mut(&mut self) -> Vec<(&'static str, &mut Secret)> {
        match self {
            Self::SlackApi(settings) => vec![("token", &mut settings.token)],
            Self::PagerDuty(settings) => vec![("routing_key", &mut settings.routing_key)],
            Self::GitHub(settings) => vec![("token", &mut settings.token)],
            _ => Vec::new(),
        }
    }

    /// Reads the files that secrets are in. Only for the operator's own file: an API must refuse files (see [`Secret::file`]).
    ///
    /// # Errors
    /// Key and problem of each that cannot be read.
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

    /// Keys of what the format wants to remember from earlier answers, to be given to [`Format::begin`].
    pub fn keys(&self, content: &Content<'_>) -> Vec<String> {
        match self {
            Self::SlackApi(settings) => settings.keys(content),
            Self::PagerDuty(settings) => settings.keys(content),
            _ => Vec::new(),
        }
    }

    /// Begins to tell something.
    ///
    /// # Errors
    /// If it cannot be said in this format.
    pub fn begin(
        &self,
        address: &Url,
        content: &Content<'_>,
        kept: &ProviderState,
    ) -> Result<Step, Unsendable> {
        match self {
            Self::CloudEvents => cloudevents::begin(address, content),
            Self::Slack => slack::begin(address, content),
            Self::SlackApi(settings) => settings.begin(address, content, kept),
            Self::Teams => teams::begin(address, content),
            Self::Discord => discord::begin(address, content),
            Self::PagerDuty(settings) => settings.begin(address, content, kept),
            Self::GitHub(settings) => settings.begin(address, content),
            Self::Template(settings) => settings.begin(address, content),
        }
    }
}

/// The smallest body of the ever shorter layouts that fits, or the last one.
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

/// The table form; the derive knows fields and names.
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
