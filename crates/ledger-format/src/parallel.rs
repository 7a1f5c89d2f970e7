//! Work on several threads whose results are wanted in order.

use std::ops::ControlFlow;
use std::sync::mpsc::sync_channel;
use std::thread;

/// Pieces of work that a thread has before it, and results behind it.
const QUEUE_CAPACITY: usize = 2;

/// Works on every piece that `next` gives until it gives none, on some threads, and hands the results over in the order of the pieces.
/// Memory is bounded: what is not taken yet holds back what is not begun. Ends early if `take` breaks.
///
/// Each thread has channels of its own, which are filled and emptied by turns: so the order needs no numbers and no sorting.
pub(crate) fn map_in_order<T: Send, R: Send>(
    threads: usize,
    mut next: impl FnMut() -> Option<T> + Send,
    work: impl Fn(T) -> R + Sync,
    mut take: impl FnMut(R) -> ControlFlow<()>,
) {
    thread::scope(|scope| {
        let (mut feeds, mut results) = (Vec::new(), Vec::new());
        for _ in 0..threads.max(1) {
            let (feed, pieces) = sync_channel::<T>(QUEUE_CAPACITY);
            let (done, result) = sync_channel::<R>(QUEUE_CAPACITY);
            let work = &work;
            scope.spawn(move || {
                for piece in pieces {
                    if done.send(work(piece)).is_err() {
                        break;
                    }
                }
            });
            feeds.push(feed);
            results.push(result);
        }
        scope.spawn(move || {
            for feed in feeds.iter().cycle() {
                let Some(piece) = next() else { break };
                if feed.send(piece).is_err() {
                    break;
                }
            }
        });
        for result in results.iter().cycle() {
            // The first that has no more is the one whose turn it would be: all results before it were taken.
            let Ok(result) = result.recv() else { break };
            if take(result).is_break() {
                break;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_whatever_the_threads() {
        for threads in [0, 1, 2, 7] {
            for count in [0, 1, 6, 100] {
                let mut pieces = 0..count;
                let mut taken = Vec::new();
                map_in_order(
                    threads,
                    || pieces.next(),
                    |piece| {
                        if piece % 3 == 0 {
                            thread::yield_now();
                        }
                        piece * 2
                    },
                    |result| {
                        taken.push(result);
                        ControlFlow::Continue(())
                    },
                );
                assert_eq!(taken, (0..count).map(|n| n * 2).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn ends_when_nothing_more_is_taken() {
        let mut taken = 0;
        map_in_order(
            3,
            || Some(()),
            |()| (),
            |()| {
                taken += 1;
                match taken {
                    50 => ControlFlow::Break(()),
                    _ => ControlFlow::Continue(()),
                }
            },
        );
        assert_eq!(taken, 50);
    }
}
