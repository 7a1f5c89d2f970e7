//! Follows the ledger: returns the entries of a listing after a sequence, and then new entries as
//! they are appended.
//!
//! There is no gap between history and live entries: each poll is a listing after the last returned
//! sequence.

use std::collections::VecDeque;
use std::sync::Arc;

use mesh_runtime::api::Caller;
use tokio::sync::watch;

use super::{ApiError, Entry, EventsApi};
use crate::domain::query::ListRequest;

/// The position of a reader.
pub(super) struct Follower<A> {
    api: Arc<A>,
    caller: Caller,
    request: ListRequest,
    appended: watch::Receiver<u64>,
    /// Last sequence that was read.
    after: u64,
    waiting: VecDeque<Entry>,
}

impl<A: EventsApi> Follower<A> {
    /// Begins after a sequence, or at the end of the ledger if there is none. The first poll
    /// reports errors of the request.
    pub(super) async fn begin(
        api: Arc<A>,
        caller: Caller,
        request: ListRequest,
        after: Option<u64>,
    ) -> Result<Self, ApiError> {
        let appended = api.appended();
        let after = match after {
            Some(after) => after,
            None => api.head().await?.seq,
        };
        let mut follower = Self {
            api,
            caller,
            request,
            appended,
            after,
            waiting: VecDeque::new(),
        };
        follower.poll().await?;
        Ok(follower)
    }

    /// Returns the next entry, or `None` when the ledger closes.
    pub(super) async fn next(&mut self) -> Option<Result<Entry, ApiError>> {
        loop {
            if let Some(found) = self.waiting.pop_front() {
                return Some(Ok(found));
            }
            self.appended.changed().await.ok()?;
            if let Err(error) = self.poll().await {
                return Some(Err(error));
            }
        }
    }

    /// Reads a page of the entries appended since the last poll.
    async fn poll(&mut self) -> Result<(), ApiError> {
        loop {
            let head = *self.appended.borrow_and_update();
            let page = self
                .api
                .list_after(&self.caller, self.request.clone(), self.after)
                .await?;
            let more = page.next_cursor.is_some();
            let last = page.entries.last().map_or(self.after, |entry| entry.seq);
            // Entries that the filter excluded are not read again.
            self.after = if more { last } else { last.max(head) };
            self.waiting.extend(page.entries);
            if more {
                // There are further pages: polls again after this page is sent.
                self.appended.mark_changed();
            }
            if more || !self.waiting.is_empty() || self.after >= head {
                return Ok(());
            }
        }
    }
}
