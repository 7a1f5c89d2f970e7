//! Everything that a filter chooses, page by page: what an export is made of.
//!
//! It ends where the ledger ended when it began, and no more than a page is held.

use std::sync::Arc;

use mesh_runtime::api::Caller;

use super::{ApiError, Entry, EventsApi};
use crate::domain::filter::Filter;
use crate::domain::query::ListRequest;

/// A reader's place.
pub(super) struct Pages<A> {
    api: Arc<A>,
    caller: Caller,
    /// The next page; `None` after the last.
    request: Option<ListRequest>,
}

impl<A: EventsApi> Pages<A> {
    pub(super) async fn begin(
        api: Arc<A>,
        caller: Caller,
        mut filter: Filter,
    ) -> Result<Self, ApiError> {
        let end = api.head().await?.seq;
        filter.to_seq = Some(filter.to_seq.unwrap_or(end).min(end));
        // Bounds beyond the end of the ledger: nothing is there yet.
        let nothing = end == 0 || filter.from_seq.is_some_and(|from| from > end);
        let request = ListRequest {
            filter,
            ..ListRequest::default()
        };
        Ok(Self {
            api,
            caller,
            request: (!nothing).then_some(request),
        })
    }

    /// True if there is no further page.
    pub(super) const fn is_done(&self) -> bool {
        self.request.is_none()
    }

    /// The next page; `None` after the last. The first one answers what is wrong with the question.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<Entry>>, ApiError> {
        let Some(mut request) = self.request.take() else {
            return Ok(None);
        };
        let page = self.api.list(&self.caller, request.clone()).await?;
        if page.next_cursor.is_some() {
            request.cursor = page.next_cursor;
            self.request = Some(request);
        }
        Ok(Some(page.entries))
    }
}
