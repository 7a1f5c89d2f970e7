//! Speed of ingest's publishing: `publish_all`, which keeps the order per entity, retries and counts. Compared with the bare client,
//! which sends the same subjects, headers and bytes with the same number of unacknowledged messages.

use std::time::Instant;

use async_nats::HeaderMap;
use async_nats::jetstream;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use mesh_events::cloudevents::Attributes;
use mesh_events::{Event, subject};
use prost::Message as _;
use tokio_util::sync::CancellationToken;

use crate::Arguments;
use crate::load::{event, server};
use crate::report::{Line, Section};
use crate::stats::Sorted;

/// Maximum number of unacknowledged messages, as in `publish_all`.
const WINDOW: usize = 256;

pub async fn measure(arguments: &Arguments) -> anyhow::Result<Section> {
    let (nats, bus) = server().await?;
    let shutdown = CancellationToken::new();
    let raw_context = jetstream::new(async_nats::connect(nats.url()).await?);
    let count = arguments.events;
    let (mut ours, mut raw) = (Vec::new(), Vec::new());
    // One extra round: the first is a warm-up.
    for round in 0..=arguments.rounds {
        let first = round * 2 * count;
        let events: Vec<Event> = (first..first + count).map(event).collect();
        let start = Instant::now();
        bus.publish_all(events, &shutdown).await?;
        let ours_took = start.elapsed();

        let messages = (first + count..first + 2 * count)
            .map(|n| PreparedMessage::of(&event(n)))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let start = Instant::now();
        stream::iter(messages)
            .map(|message| message.send(&raw_context))
            .buffer_unordered(WINDOW)
            .try_collect::<()>()
            .await?;
        let raw_took = start.elapsed();
        if round > 0 {
            ours.push(f64::from(count) / ours_took.as_secs_f64());
            raw.push(f64::from(count) / raw_took.as_secs_f64());
        }
    }
    let ratio = Sorted::new(ours.iter().zip(&raw).map(|(ours, raw)| ours / raw)).median();
    let (ours, raw) = (Sorted::new(ours).median(), Sorted::new(raw).median());
    Ok(Section {
        title: "job events onto the bus",
        lines: vec![
            Line::value("raw pipelined publish", "events/s", raw),
            Line::value("publish_all", "events/s", ours)
                .against(raw, "raw publish")
                .budget("≥ 0.5", ratio >= 0.5),
        ],
        notes: vec![format!(
            "{} rounds of {count} events, taken in turn; {WINDOW} unacknowledged; every message synced to disk by the server",
            arguments.rounds
        )],
    })
}

/// A message as `publish_all` would send it, prepared in advance.
struct PreparedMessage {
    subject: String,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl PreparedMessage {
    fn of(event: &Event) -> anyhow::Result<Self> {
        let mut headers = HeaderMap::new();
        for (name, value) in Attributes::of(event)?.headers() {
            headers.insert(name, value);
        }
        headers.insert(async_nats::header::NATS_MESSAGE_ID, event.id.as_str());
        Ok(Self {
            subject: subject::of(event)?,
            headers,
            body: event.encode_to_vec(),
        })
    }

    async fn send(self, context: &jetstream::Context) -> anyhow::Result<()> {
        context
            .publish_with_headers(self.subject, self.headers, self.body.into())
            .await?
            .await?;
        Ok(())
    }
}
