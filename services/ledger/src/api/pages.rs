//! Reads all selected entries page by page, for exports.
//!
//! Reading ends at the last entry that the ledger had at the start. Only one page is held in
//! memory.

use std::sync::Arc;

use mesh_runtime::api::Caller;

use super::{ApiError, Entry, EventsApi};
use crate::domain::filter::Filter;
use crate::domain::query::ListRequest;

/// The position of a reader.
pub(super) struct Pages<A> {
    api: Arc<A>,
    caller: Caller,
    /// Request of the next page, `None` after the last.
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
        // The bounds are beyond the end of the ledger, so there are no entries yet.
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

    /// True if there are no further pages.
    pub(super) const fn is_done(&self) -> bool {
        self.request.is_none()
    }

    /// Returns the next page, or `None` after the last. The first call reports errors of the
    /// request.
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
