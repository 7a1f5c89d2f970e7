//! Parallel work whose results are needed in order.

use std::ops::ControlFlow;
use std::sync::mpsc::sync_channel;
use std::thread;

/// Maximum number of queued inputs, and of queued results, per thread.
const QUEUE_CAPACITY: usize = 2;

/// Processes every input from `next` on several threads, and passes the results to `take` in input
/// order. Bounded queues limit the memory: no new work starts while results wait. Ends early if
/// `take` breaks.
///
/// Each thread has its own channels, which are filled and drained in round-robin order. This
/// preserves the order without numbering or sorting.
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
            // The first thread without results ends the loop: all earlier results were taken.
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
