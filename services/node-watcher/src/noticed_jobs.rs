//! The jobs on nodes that a provider will reclaim: keys in the correlation of `node.preempted`.
//!
//! Notices are rare, so Slurm is asked for each. If it does not answer, the event goes out without them: the notice counts in seconds.

use std::collections::{BTreeMap, BTreeSet};

use mesh_events::proto::mesh::event::v1::Correlation;
use mesh_events::{Event, EventType, RunKey};
use slurm_client::{ArrayTasks, JobRecord, Slurm};
use slurm_types::{HostList, JobId};

/// Adds the jobs to the events of these nodes.
pub async fn correlate(slurm: &Slurm, cluster: &str, nodes: &[String], events: &mut [Event]) {
    if nodes.is_empty() {
        return;
    }
    let runs = match runs_on(slurm, cluster, nodes).await {
        Ok(runs) => runs,
        Err(error) => {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "jobs of a preempted node not read"
            );
            return;
        }
    };
    for event in events {
        let node = event.entity_key().trim_start_matches("node/");
        let is_preempted = event.kind().ok() == Some(EventType::NodePreempted);
        let Some(entities) = runs.get(node).filter(|_| is_preempted) else {
            continue;
        };
        event.correlation = Some(Correlation {
            event_ids: Vec::new(),
            entities: entities.clone(),
        });
    }
}

/// Keys of the runs on each of these nodes.
async fn runs_on(
    slurm: &Slurm,
    cluster: &str,
    nodes: &[String],
) -> Result<BTreeMap<String, Vec<String>>, slurm_client::Error> {
    let mut jobs = BTreeMap::<u32, Vec<String>>::new();
    for row in slurm.running().await? {
        let mut hosts = HostList::expand(&row.nodes).unwrap_or_default();
        hosts.retain(|host| nodes.contains(host));
        if !hosts.is_empty() {
            jobs.insert(row.job_id, hosts);
        }
    }
    let ids: BTreeSet<JobId> = jobs.keys().copied().filter_map(JobId::new).collect();
    let ids: Vec<JobId> = ids.into_iter().collect();
    let found = slurm.jobs(&ids).await?.found;
    let mut runs = BTreeMap::<String, Vec<String>>::new();
    for record in found {
        let hosts = record.job_id.and_then(|id| jobs.get(&id.get()));
        let Some((hosts, run)) = hosts.zip(run_of(cluster, &record)) else {
            continue;
        };
        for host in hosts {
            runs.entry(host.clone()).or_default().push(run.entity_key());
        }
    }
    Ok(runs)
}

/// The run of a record. Attempts that share a submit time are not distinguished here.
fn run_of(cluster: &str, record: &JobRecord) -> Option<RunKey> {
    Some(RunKey {
        cluster: cluster.to_owned(),
        job_id: record.array_job_id.or(record.job_id)?.get(),
        task_id: record.array_tasks.as_ref().and_then(ArrayTasks::task),
        submit_time: record.submit?.as_secs(),
        attempt: 0,
    })
}
