//! Slack's Web API with a bot's token: channels, direct messages to a job's owner, and one updated message per job.
//!
//! A direct message takes `users.lookupByEmail` and `conversations.open` before `chat.postMessage`; the
//! conversation's id is stored. An updated message is posted once and then changed by `chat.update`. Its channel and
//! timestamp are stored with the `run_seq` it shows, so that a late retry never replaces a newer state.
//!
//! Failures also have status 200: `ok` and `error` in the body decide. Response bodies repeat the whole message, and
//! only their beginning is read. The few fields needed are parsed even if the rest is missing.

use std::fmt;

use bytes::Bytes;
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use url::Url;

use super::request::{
    Method, ProviderState, Request, Response, StateUpdate, Unsendable, Verdict, join,
};
use super::{Content, Secret, Step, slack};
use crate::attempt_outcome::Outcome;

/// Settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlackApi {
    /// The bot's token, `xoxb-…`. Scopes: `chat:write`; for direct messages also `users:read.email` and `im:write`.
    pub token: Secret,
    /// Id or name of a channel. With `direct`: the fallback for jobs whose owner has no known e-mail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// Sends direct messages to the job's owner, found by the e-mail of the identity map.
    #[serde(default)]
    pub direct: bool,
    /// One message per job, updated as the job progresses.
    #[serde(default)]
    pub current: bool,
}

impl Eq for Secret {}

/// Stored state of a posted message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct PostedMessage {
    channel: String,
    ts: String,
    seq: u64,
    /// True if it was sent to the owner alone.
    #[serde(default)]
    direct: bool,
}

impl SlackApi {
    pub(super) fn faults(&self) -> Vec<(&'static str, String)> {
        let mut faults = Vec::new();
        if let Some(problem) = self.token.fault() {
            faults.push(("token", problem));
        } else if !self.token.expose().starts_with("xox") {
            faults.push(("token", "a bot's token begins with xoxb-".to_owned()));
        }
        if !self.direct
            && self
                .channel
                .as_ref()
                .is_none_or(|channel| channel.is_empty())
        {
            faults.push((
                "channel",
                "missing; or set direct = true to write to the owners of jobs".to_owned(),
            ));
        }
        faults
    }

    pub(super) fn keys(&self, content: &Content<'_>) -> Vec<String> {
        let email = self.email(content).map(user_key);
        email.into_iter().chain(self.message_key(content)).collect()
    }

    pub(super) fn begin(
        &self,
        address: &Url,
        content: &Content<'_>,
        state: &ProviderState,
    ) -> Result<Step, Unsendable> {
        let message = content.message().ok_or(Unsendable::Nothing)?;
        let mut talk = SlackExchange {
            address: address.clone(),
            token: self.token.clone(),
            body: slack::layout(&message),
            to_owner: content
                .message_to_owner()
                .map(|message| slack::layout(&message)),
            fallback: self.channel.clone(),
            user_key: None,
            message_key: self.message_key(content),
            direct: false,
            seq: match content {
                Content::Event { event, .. } => event.run_seq,
                Content::Message { topic, .. } => topic.map_or(0, |topic| topic.number),
            },
            stage: Stage::Post,
            keep: Vec::new(),
        };
        let posted = talk.message_key.as_ref().and_then(|key| state.get(key));
        // Written by this format. Unreadable state is ignored.
        if let Some(posted) =
            posted.and_then(|text| serde_json::from_str::<PostedMessage>(text).ok())
        {
            if posted.seq > talk.seq {
                return Ok(Step::Done(Verdict::needless()));
            }
            return talk.update(posted);
        }
        if let Some(email) = self.email(content) {
            let key = user_key(email);
            talk.user_key = Some(key.clone());
            return match state.get(&key) {
                Some(channel) => talk.post(channel),
                None => talk.look_up(email),
            };
        }
        match (&self.channel, content) {
            (Some(channel), _) => talk.post(channel),
            (None, Content::Event { event, .. }) => Err(Unsendable::NoEmail {
                user: event
                    .owner
                    .as_ref()
                    .map_or_else(String::new, |owner| owner.user.clone()),
            }),
            // Without a recipient, a test of direct messages only checks the token.
            (None, Content::Message { .. }) => talk.call("auth.test", Stage::Post, &json!({})),
        }
    }

    fn email<'a>(&self, content: &Content<'a>) -> Option<&'a str> {
        let email = match content {
            Content::Event { event, .. } => {
                let identity = event.owner.as_ref()?.identity.as_ref()?;
                Some(identity.email.as_str())
            }
            Content::Message { topic, .. } => topic.as_ref()?.email,
        };
        email.filter(|email| self.direct && !email.is_empty())
    }

    /// One message per run, or per topic.
    fn message_key(&self, content: &Content<'_>) -> Option<String> {
        let about = match content {
            Content::Event { event, .. } => format!("{}/{}", event.cluster, event.job()?.run),
            Content::Message { topic, .. } => topic.as_ref()?.key.to_owned(),
        };
        self.current.then(|| format!("slack/message/{about}"))
    }
}

/// Hashed, so that the e-mail address is not stored.
fn user_key(email: &str) -> String {
    format!(
        "slack/user/{}",
        hex::encode(&Sha256::digest(email.as_bytes())[..16])
    )
}

/// A Slack exchange in progress.
pub struct SlackExchange {
    address: Url,
    token: Secret,
    body: Value,
    /// The body for the owner alone, if it says more.
    to_owner: Option<Value>,
    fallback: Option<String>,
    user_key: Option<String>,
    message_key: Option<String>,
    seq: u64,
    /// True if the message goes to the owner alone.
    direct: bool,
    stage: Stage,
    keep: Vec<StateUpdate>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    LookUp,
    Open,
    Post,
    Update,
}

impl fmt::Debug for SlackExchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Talk({:?})", self.stage)
    }
}

impl SlackExchange {
    fn look_up(mut self, email: &str) -> Result<Step, Unsendable> {
        let mut url = join(&self.address, "users.lookupByEmail")?;
        url.query_pairs_mut().append_pair("email", email);
        self.stage = Stage::LookUp;
        let request = Request {
            method: Method::Get,
            body: Bytes::new(),
            ..Request::json(&url, &Value::Null)
        };
        let request = request.bearing(self.token.expose()).with_answer();
        Ok(Step::talk(request, self))
    }

    /// The body for a conversation with the owner alone, or for a channel that others read.
    fn body(&self, direct: bool) -> Value {
        let to_owner = self.to_owner.as_ref().filter(|_| direct);
        to_owner.unwrap_or(&self.body).clone()
    }

    /// A fallback channel is posted to without the owner's key.
    fn post(mut self, channel: &str) -> Result<Step, Unsendable> {
        self.direct = self.user_key.is_some();
        let mut body = self.body(self.direct);
        body["channel"] = channel.into();
        body["unfurl_links"] = false.into();
        body["unfurl_media"] = false.into();
        self.call("chat.postMessage", Stage::Post, &body)
    }

    fn update(mut self, posted: PostedMessage) -> Result<Step, Unsendable> {
        let mut body = self.body(posted.direct);
        self.direct = posted.direct;
        body["channel"] = posted.channel.into();
        body["ts"] = posted.ts.into();
        self.call("chat.update", Stage::Update, &body)
    }

    fn call(mut self, method: &str, stage: Stage, body: &Value) -> Result<Step, Unsendable> {
        self.stage = stage;
        let url = join(&self.address, method)?;
        let request = Request {
            content_type: "application/json; charset=utf-8".into(),
            ..Request::json(&url, body)
        };
        Ok(Step::talk(
            request.bearing(self.token.expose()).with_answer(),
            self,
        ))
    }

    pub(super) fn answered(mut self, response: &Response) -> Step {
        let said = SlackResponse::read(&response.body);
        if !(200..300).contains(&response.status) {
            return Step::Done(Verdict::of(response.by_status(), response));
        }
        match (said.ok, said.error.as_deref()) {
            (Some(true), _) => self.went_well(said, response),
            (_, Some(error)) => self.refused(&response.redacted(error)),
            // Neither field: the response is not from Slack, or was cut off.
            _ => {
                self.keep.clear();
                Step::Done(Verdict::of(Outcome::Retry { after: None }, response))
            }
        }
    }

    fn went_well(mut self, said: SlackResponse, response: &Response) -> Step {
        let next = match self.stage {
            Stage::LookUp => match said.user {
                Some(user) => self.call("conversations.open", Stage::Open, &json!({"users": user})),
                None => return Step::Done(Verdict::of(Outcome::Retry { after: None }, response)),
            },
            Stage::Open => match said.channel {
                Some(channel) => {
                    let key = self.user_key.clone();
                    self.keep
                        .extend(key.map(|key| (key, Some(channel.clone()))));
                    self.post(&channel)
                }
                None => return Step::Done(Verdict::of(Outcome::Retry { after: None }, response)),
            },
            Stage::Post | Stage::Update => {
                if let (Some(key), Some(channel), Some(ts)) =
                    (self.message_key, said.channel, said.ts)
                {
                    let posted = json!(PostedMessage {
                        channel,
                        ts,
                        seq: self.seq,
                        direct: self.direct,
                    });
                    self.keep.push((key, Some(posted.to_string())));
                }
                return Step::Done(Verdict::of(Outcome::Delivered, response).keeping(self.keep));
            }
        };
        next.unwrap_or_else(|error| Step::Done(unsendable(&error)))
    }

    fn refused(mut self, error: &str) -> Step {
        let fallback = self.fallback.clone();
        let next = match (self.stage, error, fallback) {
            // The user is not in Slack, or cannot receive messages.
            (
                Stage::LookUp | Stage::Open,
                "users_not_found" | "user_not_found" | "user_disabled" | "cannot_dm_bot",
                Some(channel),
            ) => {
                self.user_key = None;
                self.post(&channel)
            }
            // The message was deleted or is too old to be changed: post a new one.
            (
                Stage::Update,
                "message_not_found"
                | "cant_update_message"
                | "edit_window_closed"
                | "channel_not_found",
                fallback,
            ) => {
                let key = self.message_key.clone();
                match fallback {
                    Some(channel) => self.post(&channel),
                    None => {
                        // The stored channel is invalid: remove the state, so that the next attempt posts a new
                        // message.
                        let forget = key.map(|key| (key, None));
                        return Step::Done(
                            refusal(error, Outcome::Retry { after: None }).keeping(forget),
                        );
                    }
                }
            }
            // The stored conversation no longer exists: look it up again.
            (Stage::Post, "channel_not_found" | "is_archived", _) if self.user_key.is_some() => {
                let forget = self.user_key.map(|key| (key, None));
                return Step::Done(refusal(error, Outcome::Retry { after: None }).keeping(forget));
            }
            (
                _,
                "internal_error"
                | "fatal_error"
                | "service_unavailable"
                | "request_timeout"
                | "ratelimited"
                | "rate_limited"
                | "message_limit_exceeded"
                | "team_added_to_org",
                _,
            ) => {
                return Step::Done(refusal(error, Outcome::Retry { after: None }));
            }
            _ => {
                let reason = format!("Slack says {error}");
                return Step::Done(refusal(error, Outcome::Permanent { reason }));
            }
        };
        next.unwrap_or_else(|error| Step::Done(unsendable(&error)))
    }
}

fn refusal(error: &str, outcome: Outcome) -> Verdict {
    let error: String = error
        .chars()
        .filter(|c| c.is_ascii_graphic())
        .take(80)
        .collect();
    Verdict {
        outcome,
        error: format!("Slack says {error}"),
        keep: Vec::new(),
    }
}

fn unsendable(error: &Unsendable) -> Verdict {
    let reason = error.to_string();
    refusal("", Outcome::Permanent { reason })
}

/// The relevant fields of a response.
#[derive(Debug, Default, PartialEq, Eq)]
struct SlackResponse {
    ok: Option<bool>,
    error: Option<String>,
    channel: Option<String>,
    user: Option<String>,
    ts: Option<String>,
}

impl SlackResponse {
    /// Parses as far as the body goes. After `ok`, `channel` and `ts` follows the message, which may be cut off.
    fn read(body: &[u8]) -> Self {
        let mut said = Self::default();
        // An error means that the body was cut off. The fields parsed before are valid.
        drop(serde_json::Deserializer::from_slice(body).deserialize_map(Reader(&mut said)));
        said
    }
}

/// `channel` and `user` are ids, or objects that contain one.
#[derive(Deserialize)]
#[serde(untagged)]
enum Id {
    Word(String),
    Object { id: String },
}

impl From<Id> for String {
    fn from(id: Id) -> Self {
        match id {
            Id::Word(id) | Id::Object { id } => id,
        }
    }
}

struct Reader<'a>(&'a mut SlackResponse);

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an answer of Slack")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "ok" => self.0.ok = Some(map.next_value()?),
                "error" => self.0.error = Some(map.next_value()?),
                "ts" => self.0.ts = Some(map.next_value()?),
                "channel" => self.0.channel = Some(map.next_value::<Id>()?.into()),
                "user" => self.0.user = Some(map.next_value::<Id>()?.into()),
                _ => drop::<IgnoredAny>(map.next_value()?),
            }
        }
        Ok::<_, A::Error>(()).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests;
