//! `/v1/log-filter`: shows and changes which log lines are written, without a restart.

use axum::Json;
use axum::routing::{MethodRouter, get};
use serde::{Deserialize, Serialize};

use super::{Caller, Problem};
use crate::telemetry::LogFilter;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewFilter {
    filter: String,
}

#[derive(Debug, Serialize)]
struct Filters {
    filter: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    former: Option<String>,
}

/// Routes for administrators.
pub(super) fn routes(filter: LogFilter) -> MethodRouter {
    let shown = filter.clone();
    let show = async move |caller: Caller| {
        administrator(&caller)?;
        Ok::<_, Problem>(Json(Filters {
            filter: shown.current(),
            former: None,
        }))
    };
    let change = async move |caller: Caller, Json(new): Json<NewFilter>| {
        administrator(&caller)?;
        let former = filter
            .set(&new.filter)
            .map_err(|fault| Problem::bad_request(format!("filter: {fault}")))?;
        let (filter, by) = (filter.current(), &caller.name);
        tracing::warn!(filter, former, by, "log filter changed");
        Ok::<_, Problem>(Json(Filters {
            filter,
            former: Some(former),
        }))
    };
    get(show).put(change)
}

fn administrator(caller: &Caller) -> Result<(), Problem> {
    match caller.sees_everything() && caller.may_write() {
        true => Ok(()),
        false => Err(Problem::forbidden("the log filter is for administrators")),
    }
}
