//! Until when the job events of the bus are handled. A run whose end is still in the bus is not evaluated beyond it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use mesh_bus::{ConsumerProgress, Message};

/// Most seconds that are stored.
const MAX_SECONDS: usize = 3600;

/// The messages that this process handled: for each second in which the server stored some, the highest stream sequence.
#[derive(Clone, Debug, Default)]
pub(crate) struct HandledMessages(Arc<Mutex<VecDeque<(i64, u64)>>>);

impl HandledMessages {
    /// Notes a batch, in stream order.
    pub fn note(&self, messages: &[Message]) {
        for message in messages {
            self.note_one(message.published.timestamp(), message.stream_sequence);
        }
    }

    fn note_one(&self, stored: i64, sequence: u64) {
        let mut seconds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match seconds.back_mut() {
            Some((_, last)) if *last >= sequence => return,
            Some((second, last)) if *second >= stored => {
                *last = sequence;
                return;
            }
            _ => seconds.push_back((stored, sequence)),
        }
        if seconds.len() > MAX_SECONDS {
            seconds.pop_front();
        }
    }

    /// The Unix time until which all messages of the consumer are handled, by this process or another. `None` if it is not known.
    pub fn until(&self, now: i64, progress: ConsumerProgress) -> Option<i64> {
        if progress.unhandled == 0 {
            return Some(now);
        }
        let seconds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let handled = seconds
            .iter()
            .rev()
            .find(|(_, sequence)| *sequence <= progress.acknowledged);
        handled.map(|(stored, _)| now.min(*stored))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_acknowledged_is_not_handled() {
        let handled = HandledMessages::default();
        let at = |acknowledged, unhandled| ConsumerProgress {
            delivered: 100,
            acknowledged,
            unhandled,
        };
        assert_eq!(handled.until(1_000, at(100, 0)), Some(1_000));
        assert_eq!(handled.until(1_000, at(100, 1)), None);
        // The third was delivered again, after the fourth.
        for (stored, sequence) in [(10, 1), (10, 2), (12, 4), (11, 3), (13, 7)] {
            handled.note_one(stored, sequence);
        }
        let until = |acknowledged| handled.until(1_000, at(acknowledged, 5));
        assert_eq!(
            [1, 2, 3, 4, 6, 7].map(until),
            [None, Some(10), Some(10), Some(12), Some(12), Some(13)]
        );
        assert_eq!(handled.until(11, at(7, 5)), Some(11));
    }
}
