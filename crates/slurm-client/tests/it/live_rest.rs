//! A real slurmrestd beside the cluster: it tells of the same jobs what Slurm's commands tell.

use std::{
    collections::BTreeMap,
    os::unix::fs::chown,
    process::{Child, Command, Stdio},
    time::Duration,
};

use slurm_client::{
    AccountingRecord, Config, Error, JobRecord, Query, RestUrl, Slurm, Source, SweepRow,
};
use slurm_types::{JobBaseState, JobId, UnixTime};

use crate::cluster::{Cluster, eventually};

/// slurmrestd on a unix socket with local authentication. It must be neither root nor SlurmUser.
struct Rest {
    process: Child,
    config: Config,
}

impl Rest {
    async fn start(cluster: &Cluster) -> Self {
        let folder = cluster.folder().join("rest");
        std::fs::create_dir(&folder).unwrap();
        let nobody = 65_534;
        chown(&folder, Some(nobody), Some(nobody)).unwrap();
        let socket = folder.join("s");
        let conf = cluster.config().conf.unwrap();
        let process = Command::new("setpriv")
            .args([
                "--reuid=nobody",
                "--regid=nogroup",
                "--clear-groups",
                "--pdeathsig=KILL",
            ])
            .args(["slurmrestd", "-a", "rest_auth/local"])
            .arg(format!("unix:{}", socket.display()))
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("SLURM_CONF", conf)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let config = Config {
            source: Source::Rest,
            rest_url: RestUrl::Unix(socket),
            command_timeout: Duration::from_secs(30),
            ..Config::default()
        };
        let slurm = Slurm::new(config.clone());
        eventually("slurmrestd", async || {
            slurm.ping().await.ok().filter(|ping| ping.up)
        })
        .await;
        Self { process, config }
    }
}

impl Drop for Rest {
    fn drop(&mut self) {
        if self.process.kill().is_ok() {
            drop(self.process.wait());
        }
    }
}

/// Every question is answered alike by both sources.
pub async fn same_by_rest(cluster: &Cluster, cli: &Slurm, ids: &[JobId]) {
    let server = Rest::start(cluster).await;
    let rest = Slurm::new(server.config.clone());
    assert_eq!(rest.version().await.unwrap(), cli.version().await.unwrap());
    let config = rest.config().await.unwrap();
    assert_eq!(config["ClusterName"], "client");
    assert!(config.contains_key("AsOf") && config["AccountingStorageType"].contains("slurmdbd"));

    // The same until nothing changes between the two any more.
    eventually("the same sweep", async || {
        let (cli, rest) = (cli.sweep().await.unwrap(), rest.sweep().await.unwrap());
        (rest.unread_lines == 0 && rows(&cli.rows) == rows(&rest.rows)).then_some(())
    })
    .await;
    eventually("the same jobs", async || {
        let (cli, rest) = (cli.jobs(ids).await.unwrap(), rest.jobs(ids).await.unwrap());
        assert_eq!((&rest.missing, &rest.unclear), (&cli.missing, &cli.unclear));
        (jobs(&cli.found) == jobs(&rest.found)).then_some(())
    })
    .await;
    let unknown = JobId::new(9_999_999).unwrap();
    assert_eq!(rest.jobs(&[unknown]).await.unwrap().missing, [unknown]);
    eventually("the same nodes", async || {
        let (cli, rest) = (cli.nodes().await.unwrap(), rest.nodes().await.unwrap());
        let states = |nodes: Vec<slurm_client::NodeRecord>| -> BTreeMap<_, _> {
            let facts = nodes.into_iter().map(|node| {
                let state = (
                    node.state.to_string(),
                    node.reason,
                    node.reason_user,
                    node.reason_time,
                );
                (
                    node.name,
                    (
                        state,
                        node.cpus_total,
                        node.real_memory_mib,
                        node.gres,
                        node.partitions,
                    ),
                )
            });
            facts.collect()
        };
        (states(cli) == states(rest)).then_some(())
    })
    .await;
    for query in [
        Query::Jobs(ids.to_vec()),
        Query::Window {
            start: UnixTime::from_secs(1_700_000_000),
            end: None,
        },
    ] {
        eventually("the same rows of accounting", async || {
            let cli = cli.accounting(&query).await.unwrap();
            let rest = rest.accounting(&query).await.unwrap();
            (accounting(&cli) == accounting(&rest) && !rest.is_empty()).then_some(())
        })
        .await;
    }
    let error = rest.transactions(UnixTime::from_secs(0)).await.unwrap_err();
    assert!(matches!(error, Error::NotOverRest { .. }), "{error}");
    drop(server);
    let error = rest.sweep().await.unwrap_err();
    assert!(matches!(error, Error::RestDown { .. }), "{error}");
}

fn rows(rows: &[SweepRow]) -> Vec<String> {
    let mut rows: Vec<String> = rows
        .iter()
        .map(|row| {
            let run = (
                row.job_id,
                row.array_job_id,
                &row.array_tasks,
                row.het_job_id,
                row.het_job_offset,
            );
            let state = (
                &row.state.base,
                row.submit,
                row.priority == Some(0),
                &row.reason,
            );
            let rest = (
                &row.partition,
                &row.user,
                row.uid,
                &row.account,
                &row.qos,
                &row.nodes,
                &row.time_limit,
            );
            format!("{run:?} {state:?} {rest:?}")
        })
        .collect();
    rows.sort();
    rows
}

fn jobs(jobs: &[JobRecord]) -> Vec<String> {
    let mut jobs: Vec<String> = jobs
        .iter()
        .map(|job| {
            let run = (
                job.job_id,
                job.array_job_id,
                &job.array_tasks,
                job.array_throttle,
                job.het_job_id,
            );
            let state = (
                &job.state.base,
                &job.reason,
                job.restarts,
                job.requeue,
                job.priority == Some(0),
            );
            let times = (job.submit, job.eligible, job.suspend_time, job.deadline);
            let running = job.was_allocated().then_some((job.start, job.end));
            let owner = (
                &job.user,
                job.uid,
                &job.group,
                &job.account,
                &job.partition,
                &job.qos,
            );
            let what = (
                &job.name,
                &job.comment,
                &job.work_dir,
                &job.stdout,
                &job.dependency,
            );
            let size = (
                &job.nodes,
                job.node_count,
                &job.batch_host,
                &job.alloc_tres,
                &job.node_allocs,
            );
            let codes = (job.exit_code, job.derived_exit_code, job.exclusive);
            format!("{run:?} {state:?} {times:?} {running:?} {owner:?} {what:?} {size:?} {codes:?}")
        })
        .collect();
    jobs.sort();
    jobs
}

fn accounting(rows: &[AccountingRecord]) -> Vec<String> {
    let mut rows: Vec<String> = rows
        .iter()
        .map(|row| {
            let tasks = row.array.as_ref().map(|array| {
                let tasks: Vec<u32> = array.tasks.set().unwrap().iter().collect();
                (array.array_job_id, tasks)
            });
            let run = (
                row.job_id,
                tasks,
                row.het_job_id,
                row.het_job_offset,
                row.submit,
            );
            let state = (
                &row.state,
                row.cancelled_by,
                row.start,
                row.end,
                row.ended(),
            );
            let owner = (&row.user, row.uid, &row.account, &row.partition, &row.qos);
            let size = (&row.nodes, row.node_count, &row.req_tres, &row.alloc_tres);
            // 22.05 loses the others over REST.
            let code = row
                .exit_code
                .filter(|_| row.state.is(JobBaseState::Completed));
            format!("{run:?} {state:?} {owner:?} {size:?} {code:?}")
        })
        .collect();
    rows.sort();
    rows
}
