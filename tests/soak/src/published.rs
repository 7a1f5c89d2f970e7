//! Published events: everything on the public bus, read by a plain consumer, and everything in the ledger.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use async_nats::jetstream;
use futures_util::StreamExt as _;
use mesh_events::Event;
use prost::Message as _;

use super::testbed::Testbed;

const STREAM: &str = "SLURM_EVENTS";

/// Events read so far.
#[derive(Debug, Default)]
pub(super) struct Published {
    /// All events on the bus by id, as first seen there.
    pub(super) bus: BTreeMap<String, Event>,
    /// Number of ledger entries of each id.
    pub(super) ledger: BTreeMap<String, u32>,
    /// Ids that are on the bus more than once.
    pub(super) repeated: Vec<String>,
    /// Reports of ingest about doorbells that it rejected as contradictory.
    pub(super) contradicted_hooks: Vec<String>,
    last: u64,
}

impl Published {
    /// Reads new events. False if bus or ledger does not answer at present.
    pub(super) async fn read_on(&mut self, testbed: &Testbed) -> bool {
        self.read_logs(testbed).await;
        self.read_bus(testbed).await.is_some() && self.read_ledger(testbed).await.is_some()
    }

    async fn read_logs(&mut self, testbed: &Testbed) {
        const DISBELIEVED: [&str; 2] = [
            "slurmctld's record does not show the job end that a hook reported",
            "job end reported by hook is of an unknown run",
        ];
        self.contradicted_hooks.clear();
        for name in ["ingest", "ingest-2"] {
            let Some(service) = testbed.services.get(name) else {
                continue;
            };
            let log = service.lock().await.read_log();
            let lines = log
                .lines()
                .filter(|line| DISBELIEVED.iter().any(|words| line.contains(words)));
            self.contradicted_hooks.extend(lines.map(str::to_owned));
        }
    }

    async fn read_bus(&mut self, testbed: &Testbed) -> Option<()> {
        let url = testbed.nats.lock().await.url();
        let client = async_nats::connect(url).await.ok()?;
        let context = jetstream::new(client);
        let mut stream = context.get_stream(STREAM).await.ok()?;
        let end = stream.info().await.ok()?.state.last_sequence;
        if end <= self.last {
            return Some(());
        }
        let config = jetstream::consumer::pull::OrderedConfig {
            deliver_policy: jetstream::consumer::DeliverPolicy::ByStartSequence {
                start_sequence: self.last + 1,
            },
            ..Default::default()
        };
        let consumer = stream.create_consumer(config).await.ok()?;
        let mut messages = consumer.messages().await.ok()?;
        while self.last < end {
            let message = messages.next().await?.ok()?;
            let sequence = message.info().ok()?.stream_sequence;
            if sequence <= self.last {
                continue;
            }
            self.last = sequence;
            let event = Event::decode(message.payload.clone()).ok()?;
            match self.bus.entry(event.id.clone()) {
                Entry::Occupied(known) => self.repeated.push(known.key().clone()),
                Entry::Vacant(new) => {
                    new.insert(event);
                }
            }
        }
        Some(())
    }

    /// Reads the whole ledger every time. Entries are few, and a page that may still grow is no basis for continuing.
    async fn read_ledger(&mut self, testbed: &Testbed) -> Option<()> {
        let ledger = testbed.services.get("ledger")?;
        let (mut held, mut cursor) = (BTreeMap::new(), String::new());
        loop {
            let path = format!("/v1/events?limit=1000{cursor}");
            let page = ledger.lock().await.get(&path).await.json();
            for entry in page["entries"].as_array()? {
                if let Some(id) = entry["event"]["id"].as_str() {
                    *held.entry(id.to_owned()).or_default() += 1;
                }
            }
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        self.ledger = held;
        Some(())
    }
}
