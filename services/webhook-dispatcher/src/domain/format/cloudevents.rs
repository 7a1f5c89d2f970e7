//! CloudEvents 1.0 in structured JSON, signed by the shell as Standard Webhooks say.

use mesh_events::cloudevents::{CONTENT_TYPE_JSON, to_json};
use url::Url;

use super::Content;
use super::exchange::{Request, Response, Step, Unsendable};

pub(super) fn begin(address: &Url, content: &Content<'_>) -> Result<Step, Unsendable> {
    let Content::Event { event, replay, .. } = content else {
        return Err(Unsendable::NotAnEvent);
    };
    let mut body = to_json(event)?;
    if let Some(replay) = replay {
        // An extension attribute, beside those of the event.
        body["replayid"] = (*replay).into();
    }
    let request = Request {
        content_type: CONTENT_TYPE_JSON.to_owned(),
        ..Request::json(address, &body)
    };
    Ok(Step::once(request, Response::by_status))
}
