//! Completes a payload from another source, or from an earlier payload of the same run.

use mesh_events::proto::mesh::job::v1::Job;

use crate::domain::observation::Observation;

/// Completes the controller's payload of a run whose epilogs run with the end and the allocation from jobcomp.
pub(in crate::domain) fn complete(job: &mut Job, evidence: &Observation, nodes_agree: bool) {
    let end = &evidence.job;
    job.state.clone_from(&end.state);
    job.end_time = end.end_time;
    job.exit_code.clone_from(&end.exit_code);
    job.derived_exit_code.clone_from(&end.derived_exit_code);
    if evidence.allocated {
        job.start_time = end.start_time;
    }
    if !end.nodes.is_empty() && nodes_agree {
        job.nodes.clone_from(&end.nodes);
        job.node_count = end.node_count;
    }
}

/// Preserves the last seen allocation of a COMPLETING run. The controller's record then has only the nodes whose epilogs still run, and
/// finally none. While the state hides a possible requeue (`in_flux`), the start may be that of the next run (seen on 22.05).
///
/// Other nodes that are known to be those of its end take precedence: the run was resized since the last payload. So does the record if
/// it shows such a resize itself (`is_outdated`): nodes that still run epilogs are right, those of the last payload may not be.
pub fn copy_allocation(observation: &mut Observation, last: &Job, is_outdated: bool) {
    let in_flux = observation.in_flux();
    let job = &mut observation.job;
    let was_resized = is_outdated || (observation.nodes_at_end && job.nodes != last.nodes);
    if !last.nodes.is_empty() && !was_resized {
        job.nodes.clone_from(&last.nodes);
        job.node_count = last.node_count;
        job.batch_host.clone_from(&last.batch_host);
        job.allocations.clone_from(&last.allocations);
        if in_flux {
            job.start_time = last.start_time;
        }
    }
}

/// Removes what a payload says about nodes.
pub fn clear_allocation(job: &mut Job) {
    job.nodes.clear();
    job.batch_host.clear();
    job.alloc_tres.clear();
    job.allocations.clear();
    job.start_time = None;
}

/// Fills what a source leaves open from the last payload of the same run.
pub fn fill(job: &mut Job, last: &Job) {
    macro_rules! texts { ($($field:ident),*) => { $(if job.$field.is_empty() { job.$field.clone_from(&last.$field); })* } }
    texts!(
        name,
        partition,
        qos,
        reservation,
        nodes,
        batch_host,
        req_tres,
        alloc_tres,
        dependency,
        features,
        licenses
    );
    texts!(
        work_dir,
        std_out,
        std_err,
        comment,
        admin_comment,
        group,
        wckey,
        display_id,
        failed_node
    );
    // Amounts per node are those of the last payload's nodes.
    if job.allocations.is_empty() && job.nodes == last.nodes {
        job.allocations.clone_from(&last.allocations);
    }
    if job.state == last.state {
        // The payload of the end itself is better: sacct of 22.05 subtracts 128 from exit codes above 127, and still prints the pending
        // reason.
        job.exit_code = last.exit_code.or(job.exit_code);
        job.derived_exit_code = last.derived_exit_code.or(job.derived_exit_code);
        if !last.reason.is_empty() {
            job.reason.clone_from(&last.reason);
            job.reason_description.clone_from(&last.reason_description);
        }
    }
    if job.array.is_none() {
        job.array.clone_from(&last.array);
    }
    if job.het.is_none() {
        job.het = last.het;
    }
    job.submit_time = job.submit_time.or(last.submit_time);
    job.eligible_time = job.eligible_time.or(last.eligible_time);
    job.start_time = job.start_time.or(last.start_time);
    job.time_limit_minutes = job.time_limit_minutes.or(last.time_limit_minutes);
    job.deadline = job.deadline.or(last.deadline);
    job.exclusive |= last.exclusive;
    job.requeueable |= last.requeueable;
    job.batch |= last.batch;
    if job.node_count == 0 {
        job.node_count = last.node_count;
    }
    if job.priority == 0 {
        job.priority = last.priority;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::payload::seconds;

    fn seen(nodes: &str, start: i64) -> Job {
        Job {
            nodes: nodes.to_owned(),
            node_count: 2,
            start_time: Some(seconds(start)),
            ..Job::default()
        }
    }

    /// The controller's record of a run whose epilogs run, and whose end jobcomp may have reported.
    fn completing(job: Job, is_published: bool) -> Observation {
        let record = slurm_client::JobRecord {
            job_id: slurm_types::JobId::new(7),
            submit: Some(slurm_types::UnixTime::from_secs(1)),
            state: slurm_types::JobState::parse(if is_published {
                "COMPLETED,COMPLETING"
            } else {
                "COMPLETING"
            }),
            ..slurm_client::JobRecord::default()
        };
        let mut observation = Observation::from_controller("c", &record).unwrap();
        (observation.job, observation.nodes_at_end) = (job, is_published);
        observation
    }

    #[test]
    fn a_completing_run_retains_its_allocation() {
        let mut job = seen("n2", 30);
        job.node_count = 1;
        let mut observation = completing(job, false);
        copy_allocation(&mut observation, &seen("n[1-2]", 10), false);
        assert_eq!(observation.job, seen("n[1-2]", 10));
    }

    #[test]
    fn nodes_of_the_end_are_charged_after_an_unobserved_resize() {
        for (at_end, known) in [("n1", ""), ("n[1-2]", "batch host")] {
            let mut last = seen("n[1-2]", 10);
            last.batch_host = "batch host".to_owned();
            let mut observation = completing(seen(at_end, 30), true);
            copy_allocation(&mut observation, &last, false);
            let job = &observation.job;
            assert_eq!(
                (job.nodes.as_str(), job.batch_host.as_str()),
                (at_end, known)
            );
            assert_eq!(job.start_time, Some(seconds(30)));
        }
    }

    #[test]
    fn runs_never_seen_running_have_the_record_values() {
        let mut observation = completing(seen("n1", 30), false);
        copy_allocation(&mut observation, &Job::default(), false);
        assert_eq!(observation.job, seen("n1", 30));
    }
}
