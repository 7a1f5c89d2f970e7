//! CloudEvents 1.0 as structured JSON. The HTTP adapter signs it according to Standard Webhooks.

use mesh_events::cloudevents::{CONTENT_TYPE_JSON, to_json};
use url::Url;

use super::request::{Request, Response, Unsendable};
use super::{Content, Step};

pub(super) fn begin(address: &Url, content: &Content<'_>) -> Result<Step, Unsendable> {
    let Content::Event { event, replay, .. } = content else {
        return Err(Unsendable::NotAnEvent);
    };
    let body = match replay {
        None => event.json()?,
        Some(replay) => {
            let mut json = to_json(event)?;
            // An extension attribute, in addition to those of the event.
            json["replayid"] = (*replay).into();
            json.to_string().into()
        }
    };
    let request = Request {
        content_type: CONTENT_TYPE_JSON.into(),
        ..Request::post(address, body)
    };
    Ok(Step::once(request, Response::by_status))
}
