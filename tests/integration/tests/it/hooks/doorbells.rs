//! Collects all doorbells.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use integration::wait_for;
use mesh_bus::{Bus, Disposition, Handler, Message};
use mesh_events::catalogue::{CONSUMERS, MESH_HOOKS};
use mesh_events::proto::mesh::hook::v1::Doorbell;
use prost::Message as _;
use tokio_util::sync::CancellationToken;

use super::{NAME, PATIENCE};

/// Consumes and stores doorbells.
#[derive(Clone, Default)]
pub struct Doorbells(Arc<Mutex<Vec<Doorbell>>>);

impl Handler for Doorbells {
    async fn handle(&self, message: &Message) -> Disposition {
        let doorbell = Doorbell::decode(message.body.clone()).unwrap();
        self.0.lock().unwrap().push(doorbell);
        Disposition::Ack
    }
}

impl Doorbells {
    /// Starts all kinds of doorbell consumers.
    pub fn listen(&self, bus: &Bus, stop: &CancellationToken) {
        for consumer in CONSUMERS.iter().filter(|one| one.stream == MESH_HOOKS) {
            let (bus, doorbells, stop) = (bus.clone(), self.clone(), stop.clone());
            tokio::spawn(async move {
                let durable = consumer.durable(NAME);
                bus.consume(MESH_HOOKS, &durable, 1, doorbells, &stop).await
            });
        }
    }

    fn all(&self) -> Vec<Doorbell> {
        self.0.lock().unwrap().clone()
    }

    /// Names of the hooks that sent a doorbell, without probes.
    fn names(&self) -> BTreeSet<String> {
        let happened = self.all().into_iter().filter(|doorbell| !doorbell.probe);
        happened.map(|doorbell| doorbell.hook).collect()
    }

    pub fn count(&self, is: impl Fn(&Doorbell) -> bool) -> usize {
        self.all().iter().filter(|doorbell| is(doorbell)).count()
    }

    pub async fn wait_for(&self, description: &str, found: impl Fn(&Doorbell) -> bool) {
        let outcome = wait_for(description, PATIENCE, async || {
            Ok(self.all().iter().any(&found).then_some(()))
        });
        if let Err(error) = outcome.await {
            panic!("{error}; rung so far: {:?}", self.names());
        }
    }
}
