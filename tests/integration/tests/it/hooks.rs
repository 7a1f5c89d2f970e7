//! All hooks at once on a real cluster, as installed by `smesh hooks`: jobs run, the site's own programs run, every doorbell arrives.

mod doorbells;
mod lines;
mod site;

use std::time::Duration;

use integration::{Slurm as _, wait_for};
use mesh_bus::Bus;
use mesh_testkit::NatsServer;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use self::doorbells::Doorbells;
use self::site::Site;

/// Slurm checks triggers every 15 s, and nodes that fail to start at intervals.
const PATIENCE: Duration = Duration::from_secs(180);
const NAME: &str = "meshhooks";

#[tokio::test(flavor = "multi_thread")]
async fn every_hook_sends_a_doorbell_and_site_programs_run_unchanged() {
    let mut nats = NatsServer::start().await;
    let (site, stop) = (Site::start().await, CancellationToken::new());
    let cluster = &site.cluster;
    site.configure(&nats.url());
    let config = mesh_bus::Config {
        url: nats.url(),
        ..mesh_bus::Config::default()
    };
    let bus = Bus::connect(&config, "admin").await.unwrap();
    bus.ready(&stop).await.unwrap();
    let doorbells = Doorbells::default();
    doorbells.listen(&bus, &stop);
    site.install().await;

    // While this runs, lines of the Lua plugins are delivered even without a hook call.
    let watch = site.watch();

    // Nodes that fail and return, and a cloud node that does not start because its cloud is stopped.
    cluster.control("kill", "power").await.unwrap();
    let cloud = cluster
        .submit("alice", &["--partition=cloud"], "true")
        .await
        .unwrap();
    for (state, reason) in [("DRAIN", "Reason=test"), ("DOWN", "Reason=test")] {
        let state = format!("State={state}");
        cluster
            .ask(
                "root",
                &["scontrol", "update", "NodeName=n2", &state, reason],
            )
            .await
            .unwrap();
    }
    let job = cluster
        .submit(
            "alice",
            &[
                "--nodelist=n1",
                "--mail-type=ALL",
                "--mail-user=ops@example.org",
            ],
            "true",
        )
        .await
        .unwrap();
    cluster
        .wait_state(&job.to_string(), &["COMPLETED"], PATIENCE)
        .await
        .unwrap();
    site.log_in().await;
    let mut hooks = vec![
        "PrologSlurmctld",
        "EpilogSlurmctld",
        "JobComp",
        "Prolog",
        "Epilog",
        "MailProg",
    ];
    // The lines of the Lua plugins are on a tmpfs that is mounted after the cluster was started: a Slurm in another root does not see it.
    let lines_are_seen = std::env::var("ROOT").unwrap_or_default().is_empty();
    if lines_are_seen {
        hooks.push("CliFilter");
    }
    for hook in hooks {
        doorbells
            .wait_for(hook, |doorbell| {
                doorbell.hook == hook && doorbell.job_id == job
            })
            .await;
    }
    doorbells
        .wait_for("a submission", |doorbell| doorbell.hook == "JobSubmit")
        .await;
    doorbells
        .wait_for("a login", |doorbell| {
            doorbell
                .login
                .as_ref()
                .is_some_and(|login| login.user == "alice" && login.service == "su")
        })
        .await;
    doorbells
        .wait_for("a health check", |doorbell| {
            doorbell.hook == "HealthCheckProgram" && doorbell.nodes == "n1"
        })
        .await;
    doorbells
        .wait_for("power up", |doorbell| {
            doorbell.hook == "ResumeProgram"
                && doorbell.nodes == "c1"
                && doorbell.environment["SLURM_RESUME_FILE"].contains("c1")
        })
        .await;
    doorbells
        .wait_for("a node down", |doorbell| {
            doorbell.hook == "strigger-down" && doorbell.nodes.contains("n2")
        })
        .await;
    doorbells
        .wait_for("a node that did not come up", |doorbell| {
            doorbell.hook == "ResumeFailProgram" && doorbell.nodes == "c1"
        })
        .await;
    cluster
        .ask("root", &["scancel", &cloud.to_string()])
        .await
        .unwrap();
    cluster
        .ask(
            "root",
            &[
                "scontrol",
                "update",
                "NodeName=c1",
                "State=POWER_DOWN_FORCE",
            ],
        )
        .await
        .unwrap();
    doorbells
        .wait_for("power down", |doorbell| {
            doorbell.hook == "SuspendProgram" && doorbell.nodes == "c1"
        })
        .await;

    // The site's programs run after the doorbell, with Slurm's arguments.
    for (hook, arguments) in [
        ("PrologSlurmctld", ""),
        ("JobComp", ""),
        ("Prolog", ""),
        ("HealthCheckProgram", ""),
        ("ResumeProgram", "c1"),
        ("SuspendProgram", "c1"),
    ] {
        site.wait_ran(hook, |ran| ran.iter().any(|line| line == arguments))
            .await;
    }
    site.wait_ran("MailProg", |mails| {
        mails.len() >= 2
            && mails
                .iter()
                .all(|mail| mail.starts_with("-s ") && mail.ends_with(" ops@example.org"))
    })
    .await;
    wait_for("n1 is idle", PATIENCE, async || {
        let state = ["sinfo", "-h", "-N", "-n", "n1", "-o", "%T"];
        let state = cluster.ask("root", &state).await?;
        Ok(state.contains("idle").then_some(()))
    })
    .await
    .unwrap();

    drop(watch);
    everything_is_seen_to_arrive(&site).await;

    if lines_are_seen {
        lines::a_user_fills_nothing_that_others_need(&site, &doorbells).await;
    }

    // NATS is unavailable: a job runs as usual, and its doorbells are delivered later.
    nats.kill();
    let job = cluster
        .submit("alice", &["--nodelist=n1"], "true")
        .await
        .unwrap();
    cluster
        .wait_state(&job.to_string(), &["COMPLETED"], PATIENCE)
        .await
        .unwrap();
    nats.restart().await;
    let config = site.path("hook.toml");
    wait_for("the spool is flushed", PATIENCE, async || {
        let flushed = site
            .hooks(&["flush", "--hook-config", config.to_str().unwrap()])
            .await;
        Ok(flushed.status.success().then_some(()))
    })
    .await
    .unwrap();
    for hook in [
        "PrologSlurmctld",
        "EpilogSlurmctld",
        "JobComp",
        "Prolog",
        "Epilog",
    ] {
        doorbells
            .wait_for(hook, |doorbell| {
                doorbell.hook == hook && doorbell.job_id == job
            })
            .await;
    }
    if lines_are_seen {
        lines::a_disk_that_hangs_holds_up_no_submission(&site, &nats.url()).await;
    }
    stop.cancel();
}

/// Runs `smesh hooks test` with active consumers. Repeated if a doorbell did not arrive in time, because NATS on a busy machine may
/// take longer than a hook waits.
async fn everything_is_seen_to_arrive(site: &Site) {
    let (folder, config) = (site.path("hooks"), site.path("hook.toml"));
    let (folder, config) = (folder.to_str().unwrap(), config.to_str().unwrap());
    let arguments = ["test", "--json", "--dir", folder, "--hook-config", config];
    let mut last = None;
    let arrives = wait_for("every probe arrives", PATIENCE, async || {
        let tested = site.hooks(&arguments).await;
        let printed = String::from_utf8_lossy(&tested.stdout);
        let rows: Vec<Value> = printed
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        // The test must not change the machine's own /etc/pam.d.
        let arrived = |row: &Value| match row["hook"].as_str() {
            Some("Pam") => row["outcome"] == "not_installed",
            _ => row["outcome"] == "arrived",
        };
        let all = tested.status.success() && rows.len() >= 15 && rows.iter().all(arrived);
        last = Some(tested);
        Ok(all.then_some(()))
    });
    if let Err(error) = arrives.await {
        panic!("{error}: {last:?}");
    }
}
