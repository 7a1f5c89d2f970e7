//! Locates the lost entries in the streams, and appends them.

use std::collections::HashSet;

use ledger_format::chain::Hash;
use mesh_bus::StoredMessage;
use mesh_events::catalogue::MESH_ORDER;
use mesh_events::subject;

use super::Checkpointer;
use crate::adapters::BatchSequences;
use crate::checkpointer::published_checkpoints::NewestFirst;
use crate::domain::order::{EntryOrder, OrderIndex};
use crate::domain::record::Record;
use crate::error::Error;
use crate::handlers::Source;

/// Entries per transaction.
const PAGE_ENTRIES: usize = 500;

/// An entry to recover.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecoveryPlan {
    source: Source,
    sequence: u64,
    pub leaf: Hash,
}

impl Checkpointer {
    /// Locates the entries of a range in the streams.
    pub(super) async fn find(
        &self,
        origin: &str,
        from: u64,
        to: u64,
    ) -> Result<Vec<RecoveryPlan>, Error> {
        let mut places = OrderIndex::new(from, to);
        let subject = subject::order(origin);
        let mut walk = NewestFirst::new(&self.bus, MESH_ORDER, &subject).await?;
        while let Some(message) = walk.next().await? {
            let Some(order) = EntryOrder::decode(&message.body) else {
                continue;
            };
            places.add(&order);
            if order.first_seq <= from + 1 {
                break;
            }
        }
        let count = usize::try_from(to - from).unwrap_or(usize::MAX);
        let unknown = places.unknown();
        let mut places = places.indexed();
        let mut found: Vec<Option<RecoveryPlan>> = vec![None; count];
        let mut rest = Vec::new();
        for source in [Source::Events, Source::Audit] {
            let mut spare = Vec::new();
            let mut messages = UnreadMessages::of(self, source).await?;
            while places.left() > 0 || spare.len() < unknown {
                let Some((sequence, stored, record)) = messages.next().await? else {
                    break;
                };
                if let Some(seq) = places.take(&record.id) {
                    let at = usize::try_from(seq - from - 1).unwrap_or(usize::MAX);
                    found[at] = Some(RecoveryPlan {
                        source,
                        sequence,
                        leaf: record.leaf(seq),
                    });
                } else if spare.len() < unknown && self.store.seq_of(&record.id).await?.is_none() {
                    spare.push((stored, source, sequence, record));
                }
            }
            rest.extend(spare);
        }
        // Entries without a recorded order are sorted by time as the best guess. The root then
        // shows whether the guess is right.
        rest.sort_by_key(|(stored, ..)| *stored);
        let mut ids = HashSet::new();
        rest.retain(|(.., record)| ids.insert(record.id.clone()));
        let mut rest = rest.into_iter();
        let open = found.iter_mut().zip(from + 1..);
        for (place, seq) in open.filter(|(place, _)| place.is_none()).take(unknown) {
            *place = rest
                .next()
                .map(|(_, source, sequence, record)| RecoveryPlan {
                    source,
                    sequence,
                    leaf: record.leaf(seq),
                });
        }
        let missing = found.iter().filter(|one| one.is_none()).count();
        if missing > 0 {
            return Err(Error::NotResumed(format!(
                "{missing} of {count} entries are no longer on SLURM_EVENTS and MESH_AUDIT; --new-origin continues without them"
            )));
        }
        Ok(found.into_iter().flatten().collect())
    }

    pub(super) async fn append_recovered(
        &self,
        from: u64,
        found: &[RecoveryPlan],
    ) -> Result<(), Error> {
        let mut after = from;
        let same_stream = |a: &RecoveryPlan, b: &RecoveryPlan| a.source == b.source;
        let runs = found.chunk_by(same_stream);
        for page in runs.flat_map(|run| run.chunks(PAGE_ENTRIES)) {
            let source = page[0].source;
            let stream = source.stream();
            let (mut records, mut sequences) = (Vec::new(), Vec::new());
            for one in page {
                let message = self.bus.stored_at(stream, one.sequence).await;
                let message = message.map_err(Error::Bus)?;
                let (stored, record) = record(source, message).ok_or_else(|| {
                    Error::NotResumed(format!(
                        "message {} of {stream} was deleted during the resume; {after} entries are restored",
                        one.sequence
                    ))
                })?;
                sequences.push((one.sequence, stored));
                records.push(record);
            }
            let batch = BatchSequences::Messages(sequences);
            let appended = self
                .store
                .append_recovered(after, stream, &batch, &records)
                .await?;
            after += page.len() as u64;
            if appended.head.seq != after {
                return Err(Error::Moved {
                    entries: appended.head.seq,
                    after,
                });
            }
        }
        Ok(())
    }
}

/// The messages of a stream that the ledger has not received, in order.
struct UnreadMessages<'a> {
    checkpointer: &'a Checkpointer,
    source: Source,
    next: u64,
    last: u64,
}

impl<'a> UnreadMessages<'a> {
    async fn of(checkpointer: &'a Checkpointer, source: Source) -> Result<Self, Error> {
        let stream = source.stream();
        let state = checkpointer.bus.stream_state(stream).await;
        let state = state.map_err(Error::Bus)?;
        let position = checkpointer.store.position(stream).await?;
        let position = position.unwrap_or_default();
        let same_stream = position.created_at == Some(state.created.timestamp_micros());
        Ok(Self {
            checkpointer,
            source,
            // In a recreated stream all messages are new.
            next: if same_stream {
                position.received.up_to + 1
            } else {
                1
            },
            last: state.last_sequence,
        })
    }

    /// Returns sequence, time and record of the next message, or `None` at the end.
    async fn next(&mut self) -> Result<Option<(u64, i64, Record)>, Error> {
        while self.next <= self.last {
            let bus = &self.checkpointer.bus;
            let message = bus.stored_from(self.source.stream(), self.next).await;
            let Some(message) = message.map_err(Error::Bus)? else {
                break;
            };
            self.next = message.sequence + 1;
            let sequence = message.sequence;
            if let Some((stored, record)) = record(self.source, Some(message)) {
                return Ok(Some((sequence, stored, record)));
            }
        }
        Ok(None)
    }
}

fn record(source: Source, message: Option<StoredMessage>) -> Option<(i64, Record)> {
    let message = message?;
    let record = source.decode(&message.subject, message.body).ok()?;
    Some((message.stored.timestamp_micros(), record))
}
