//! The cluster's slurmrestd, over TCP and with a token: it returns the same jobs as Slurm's commands.

use std::collections::BTreeMap;

use slurm_client::{
    AccessRecords, AccountingQuery, AccountingRecord, AssociationRecord, Error, JobRecord,
    QueueRow, Slurm, UsageRecord, UserRecord,
};
use slurm_types::{JobBaseState, JobId, JobRef, UnixTime};

use crate::cluster::{Cluster, eventually};

/// Both sources give the same result for every query.
pub async fn same_by_rest(cluster: &Cluster, cli: &Slurm, ids: &[JobId]) {
    let rest = cluster.rest(cluster.tcp());
    assert_eq!(rest.source(), "slurmrestd");
    assert_eq!(rest.version().await.unwrap(), cli.version().await.unwrap());
    let config = rest.config().await.unwrap();
    assert_eq!(config["ClusterName"], "client");
    assert!(config.contains_key("AsOf") && config["AccountingStorageType"].contains("slurmdbd"));

    // Repeated until nothing changes between the two polls.
    eventually("the same sweep", async || {
        let (cli, rest) = (
            cli.list_queue().await.unwrap(),
            rest.list_queue().await.unwrap(),
        );
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
        AccountingQuery::Jobs(ids.to_vec()),
        AccountingQuery::Window {
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
    let runs: Vec<JobRef> = ids.iter().copied().map(JobRef::Job).collect();
    eventually("the same use", async || {
        let (cli, rest) = (
            cli.usage(&runs).await.unwrap(),
            rest.usage(&runs).await.unwrap(),
        );
        let measured = |run: &UsageRecord| run.steps.iter().any(|step| step.max_rss_task.is_some());
        (usage(&cli) == usage(&rest) && rest.iter().any(measured)).then_some(())
    })
    .await;
    same_access(cluster, cli, &rest).await;
    let error = rest.transactions(UnixTime::from_secs(0)).await.unwrap_err();
    assert!(matches!(error, Error::NotOverRest { .. }), "{error}");
    cluster.control("stop", "slurmrestd");
    let error = rest.list_queue().await.unwrap_err();
    assert!(matches!(error, Error::RestDown { .. }), "{error}");
}

/// Every setting, with the same result from both.
async fn same_access(cluster: &Cluster, cli: &Slurm, rest: &Slurm) {
    let limits = "GrpTRES=cpu=9,mem=4G,gres/gpu=3 GrpTRESMins=cpu=0,mem=5000,billing=1024,fs/disk=2048 GrpTRESRunMins=cpu=1000 \
        GrpJobs=7 GrpJobsAccrue=8 GrpSubmitJobs=9 GrpWall=1-02:03:00";
    let own = "MaxTRES=cpu=5,mem=5000M MaxTRESPerNode=cpu=2 MaxTRESMins=cpu=77,mem=1024 MaxTRESRunMins=cpu=88 MaxJobs=3 \
        MaxJobsAccrue=4 MaxSubmitJobs=5 MaxWall=02:03:04 Priority=12 DefaultQOS=high qos=high,normal Fairshare=17";
    for change in [
        "add account lab parent=acme".to_owned(),
        "add account sub parent=lab".to_owned(),
        "add user lin account=lab".to_owned(),
        "add user dave account=lab partition=cpu".to_owned(),
        "add coordinator account=lab names=alice,lin".to_owned(),
        format!("modify account lab set {limits}"),
        format!("modify user lin where account=lab set {own}"),
        "modify user dave where account=lab set Fairshare=parent".to_owned(),
        "modify user lin set adminlevel=Operator".to_owned(),
    ] {
        let parts = change.split_ascii_whitespace();
        let command: Vec<&str> = ["sacctmgr", "-i", "-Q"].into_iter().chain(parts).collect();
        cluster.run_as("root", &command);
    }
    eventually("the same access", async || {
        let by_cli = cli.access("client", false).await.unwrap();
        let by_rest = rest.access("client", false).await.unwrap();
        assert!(by_rest.associations.len() > 15);
        (access(by_cli) == access(by_rest)).then_some(())
    })
    .await;
}

/// Associations without ids, which not every slurmrestd reports, and users.
fn access(records: AccessRecords) -> (Vec<String>, Vec<UserRecord>) {
    let associations = records.associations.into_iter();
    let mut associations: Vec<String> = associations
        .map(|record| format!("{:?}", AssociationRecord { id: 0, ..record }))
        .collect();
    associations.sort();
    (associations, records.users)
}

/// All fields of the steps, and the usage of their run.
fn usage(runs: &[UsageRecord]) -> Vec<String> {
    let mut runs: Vec<String> = runs
        .iter()
        .map(|run| {
            let record = &run.record;
            let which = (record.job_id, record.submit, &record.state, record.end);
            let cpu = (run.cpu_millis, run.user_cpu_millis, run.system_cpu_millis);
            let mut steps: Vec<_> = run.steps.iter().collect();
            steps.sort_by_key(|step| &step.id);
            format!("{which:?} {cpu:?} {:?} {steps:?}", run.energy_joules)
        })
        .collect();
    runs.sort();
    runs
}

fn rows(rows: &[QueueRow]) -> Vec<String> {
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
            let state = (row.state, row.submit, row.priority == Some(0), &row.reason);
            // The digest covers the columns that rows do not have: uid, account, QOS, nodes and limit.
            let rest = (&row.partition, &row.user, row.has_nodes, row.digest);
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
