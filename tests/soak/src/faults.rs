//! Causes faults and repairs them.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::{Instant, sleep, sleep_until};

use super::log::{Broken, now};
use super::plan::{Fault, FaultKind};
use super::testbed::{Testbed, set_clock, start};
use integration::Error;

/// Causes these faults one after the other. Problems with that are recorded in the driver's log.
pub(super) async fn inject(
    testbed: &Testbed,
    began: Instant,
    faults: &[Fault],
) -> Result<(), Error> {
    for fault in faults {
        sleep_until(began + fault.at).await;
        let (from, what) = (now(), fault.what);
        let lasts = fault.lasts.as_secs_f64();
        testbed.note(format!("fault: {what} for {lasts:.1} s"));
        perform(testbed, fault).await?;
        testbed.note(format!("fault over: {what}"));
        testbed.log.borrow_mut().broken.push(Broken {
            what,
            from,
            until: now(),
        });
    }
    Ok(())
}

async fn perform(testbed: &Testbed, fault: &Fault) -> Result<(), Error> {
    let Fault { lasts, what, .. } = *fault;
    let (cluster, hook) = (&testbed.cluster, testbed.hook_config("hook"));
    match what {
        FaultKind::Kill(name) => kill(testbed, name, lasts).await,
        FaultKind::KillLeader(service) => kill(testbed, testbed.leader(service).await, lasts).await,
        FaultKind::Pause(name) => pause(testbed, name, lasts).await,
        FaultKind::PauseLeader(service) => {
            pause(testbed, testbed.leader(service).await, lasts).await
        }
        FaultKind::Nats => {
            let mut nats = testbed.nats.lock().await;
            nats.kill();
            sleep(lasts).await;
            nats.restart().await;
            Ok(())
        }
        FaultKind::Slurmctld => {
            let _closed = testbed.gate.write().await;
            cluster.control("stop", "slurmctld").await?;
            sleep(lasts).await;
            cluster.control("start", "slurmctld").await
        }
        FaultKind::Slurmdbd => {
            cluster.control("kill", "slurmdbd").await?;
            sleep(lasts).await;
            cluster.control("start", "slurmdbd").await
        }
        FaultKind::Slurmrestd => {
            cluster.control("kill", "slurmrestd").await?;
            sleep(lasts).await;
            cluster.control("start", "slurmrestd").await
        }
        FaultKind::HooksOff => {
            cluster.disconnect_hooks()?;
            sleep(lasts).await;
            cluster.ring(&hook)
        }
        FaultKind::SpoolFull => {
            cluster.ring(&testbed.hook_config("hook-full"))?;
            let mut nats = testbed.nats.lock().await;
            nats.kill();
            sleep(lasts).await;
            nats.restart().await;
            cluster.ring(&hook)
        }
        FaultKind::Clock(offset) => {
            let file = cluster.path("clock");
            set_clock(&file, offset)?;
            sleep(lasts).await;
            set_clock(&file, 0)
        }
    }
}

impl Testbed {
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
            what: FaultKind::Kill(name),
            from,
            until,
        });
        self.log.borrow_mut().broken.extend(broken);
        done
    }
}

/// Kills a service and restarts it. It may become ready later, because other faults may be active.
async fn kill(testbed: &Testbed, name: &'static str, lasts: Duration) -> Result<(), Error> {
    let Some(service) = testbed.services.get(name) else {
        return Ok(());
    };
    let mut service = service.lock().await;
    service.kill().await?;
    sleep(lasts).await;
    *service = start(&testbed.mesh, name, &testbed.environment).await?;
    Ok(())
}

/// Pauses a service and resumes it.
async fn pause(testbed: &Testbed, name: &'static str, lasts: Duration) -> Result<(), Error> {
    let Some(service) = testbed.services.get(name) else {
        return Ok(());
    };
    let service = service.lock().await;
    service.signal(Signal::STOP)?;
    sleep(lasts).await;
    service.signal(Signal::CONT)
}
