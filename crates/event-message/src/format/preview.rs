//! Previews: the requests of a delivery, without sending them.

use redactor::{Redactor, Values};
use serde::Serialize;
use url::Url;
use utoipa::ToSchema;

use super::request::{Method, ProviderState, Response, Unsendable};
use super::{Content, Format, Step};

/// Maximum requests of a format.
const MAX_REQUESTS: usize = 5;
/// A response that every format accepts: most evaluate the status only, Slack's API returns the ids of what it found
/// or created.
const CONTENT: &[u8] = br#"{"ok":true,"user":{"id":"U0"},"channel":{"id":"C0"},"ts":"0.0"}"#;

/// A request that a delivery would send.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = WebhookRequest)]
pub struct Previewed {
    /// HTTP method: `GET` or `POST`.
    pub method: &'static str,
    /// URL without user, password and query; only the host for `slack`, `teams` and `discord`.
    pub url: String,
    /// Content type of the body; empty without a body.
    pub content_type: String,
    /// Body; secrets are replaced by `[redacted]`.
    pub body: String,
}

impl Format {
    /// The requests of a delivery, as if each were successful.
    ///
    /// # Errors
    /// If the format cannot express the content.
    pub fn preview(
        &self,
        address: &Url,
        content: &Content<'_>,
    ) -> Result<Vec<Previewed>, Unsendable> {
        let answer = Response {
            status: 200,
            body: CONTENT.to_vec(),
            ..Response::default()
        };
        let mut previewed = Vec::new();
        let mut step = self.begin(address, content, &ProviderState::new())?;
        while let Step::Send(request, exchange) = step {
            if previewed.len() == MAX_REQUESTS {
                break;
            }
            let (method, content_type) = match request.method {
                Method::Get => ("GET", String::new()),
                Method::Post => ("POST", request.content_type.into_owned()),
            };
            previewed.push(Previewed {
                method,
                url: self.shown(&request.url),
                content_type,
                body: self.masked(&request.body),
            });
            step = exchange.answered(&answer);
        }
        Ok(previewed)
    }

    /// A URL without user, password and query. For chats only the host, as the path is the secret.
    pub fn shown(&self, address: &Url) -> String {
        let mut url = address.clone();
        url.set_query(None);
        url.set_fragment(None);
        // Fails only for URLs without a host, which validation rejects.
        url.set_username("")
            .and_then(|()| url.set_password(None))
            .unwrap_or_default();
        if self.address_is_secret() {
            return url.origin().ascii_serialization() + "/…";
        }
        url.to_string()
    }

    /// Masks the secrets that a target requires in the body.
    fn masked(&self, body: &[u8]) -> String {
        let mut values = Values::default();
        for (_, secret) in self.secrets() {
            values.secret(secret.expose());
        }
        let body = String::from_utf8_lossy(body);
        Redactor::new(values).redact(&body).into_owned()
    }
}
