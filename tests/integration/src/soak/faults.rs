//! Breaks things, and puts them right again.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::{Instant, sleep, sleep_until};

use super::log::{Broken, now};
use super::plan::{Break, Fault};
use super::stage::{Stage, set_clock, start};
use crate::Error;

/// Breaks these one after the other. What went wrong with that is in the driver's log.
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
            cluster.ring_nobody()?;
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

/// Kills a service and starts it again. Ready it may be later: something else may be broken at the same time.
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

/// Stops a service and lets it go on.
async fn pause(stage: &Stage, name: &'static str, lasts: Duration) -> Result<(), Error> {
    let Some(service) = stage.services.get(name) else {
        return Ok(());
    };
    let service = service.lock().await;
    service.signal(Signal::STOP)?;
    sleep(lasts).await;
    service.signal(Signal::CONT)
}
