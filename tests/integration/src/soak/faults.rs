//! Causes faults and repairs them.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::{Instant, sleep, sleep_until};

use super::log::{Broken, now};
use super::plan::{Break, Fault};
use super::stage::{Stage, set_clock, start};
use crate::Error;

/// Causes these faults one after the other. Problems with that are recorded in the driver's log.
pub(super) async fn play(stage: &Stage, began: Instant, faults: &[Fault]) -> Result<(), Error> {
    for fault in faults {
        sleep_until(began + fault.at).await;
        let (from, what) = (now(), fault.what);
        let lasts = fault.lasts.as_secs_f64();
        stage.note(format!("fault: {what} for {lasts:.1} s"));
        perform(stage, fault).await?;
        stage.note(format!("fault over: {what}"));
        stage.log.borrow_mut().broken.push(Broken {
            what,
            from,
            until: now(),
        });
    }
    Ok(())
}

async fn perform(stage: &Stage, fault: &Fault) -> Result<(), Error> {
    let Fault { lasts, what, .. } = *fault;
    let (cluster, hook) = (&stage.cluster, stage.hook_config("hook"));
    match what {
        Break::Kill(name) => kill(stage, name, lasts).await,
        Break::KillLeader(service) => kill(stage, stage.leader(service).await, lasts).await,
        Break::Pause(name) => pause(stage, name, lasts).await,
        Break::PauseLeader(service) => pause(stage, stage.leader(service).await, lasts).await,
        Break::Nats => {
            let mut nats = stage.nats.lock().await;
            nats.kill();
            sleep(lasts).await;
            nats.restart().await;
            Ok(())
        }
        Break::Slurmctld => {
            let _closed = stage.gate.write().await;
            cluster.control("stop", "slurmctld").await?;
            sleep(lasts).await;
            cluster.control("start", "slurmctld").await
        }
        Break::Slurmdbd => {
            cluster.control("kill", "slurmdbd").await?;
            sleep(lasts).await;
            cluster.control("start", "slurmdbd").await
        }
        Break::Slurmrestd => {
            cluster.control("kill", "slurmrestd").await?;
            sleep(lasts).await;
            cluster.control("start", "slurmrestd").await
        }
        Break::HooksOff => {
            cluster.disconnect_hooks()?;
            sleep(lasts).await;
            cluster.ring(&hook)
        }
        Break::SpoolFull => {
            cluster.ring(&stage.hook_config("hook-full"))?;
            let mut nats = stage.nats.lock().await;
            nats.kill();
            sleep(lasts).await;
            nats.restart().await;
            cluster.ring(&hook)
        }
        Break::Clock(offset) => {
            let file = cluster.path("clock");
            set_clock(&file, offset)?;
            sleep(lasts).await;
            set_clock(&file, 0)
        }
    }
}

impl Stage {
    /// Performs an operation while all replicas of a service are stopped.
    pub(super) async fn without<T>(
        &self,
        service: &str,
        act: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let from = now();
        let names = self.services.keys().copied();
        let names: Vec<&'static str> = names
            .filter(|name| name.strip_suffix("-2").unwrap_or(name) == service)
            .collect();
        // Locked in the order of their names, as everywhere, to avoid deadlocks.
        let mut stopped = Vec::new();
        for name in &names {
            if let Some(replica) = self.services.get(name) {
                let mut replica = replica.lock().await;
                replica.kill().await?;
                stopped.push(replica);
            }
        }
        self.note(format!("{} killed", names.join(" and ")));
        let done = act.await;
        for replica in &mut stopped {
            let name = replica.name;
            **replica = start(&self.mesh, name, &self.environment).await?;
        }
        self.note(format!("{} started", names.join(" and ")));
        let until = now();
        let broken = names.into_iter().map(|name| Broken {
            what: Break::Kill(name),
            from,
            until,
        });
        self.log.borrow_mut().broken.extend(broken);
        done
    }
}

/// Kills a service and restarts it. It may become ready later, because other faults may be active.
async fn kill(stage: &Stage, name: &'static str, lasts: Duration) -> Result<(), Error> {
    let Some(service) = stage.services.get(name) else {
        return Ok(());
    };
    let mut service = service.lock().await;
    service.kill().await?;
    sleep(lasts).await;
    *service = start(&stage.mesh, name, &stage.environment).await?;
    Ok(())
}

/// Pauses a service and resumes it.
async fn pause(stage: &Stage, name: &'static str, lasts: Duration) -> Result<(), Error> {
    let Some(service) = stage.services.get(name) else {
        return Ok(());
    };
    let service = service.lock().await;
    service.signal(Signal::STOP)?;
    sleep(lasts).await;
    service.signal(Signal::CONT)
}
