//! The job of an event, as acts of rules name it.

use std::borrow::Cow;

use mesh_events::proto::mesh::job::v1::Job;
use serde_json::Value;
use slurm_types::{JobId, JobRef};

use super::array::ArrayTask;

/// The job that an event is about.
#[derive(Clone, Copy, Debug, Default)]
pub struct EventJob {
    id: Option<JobId>,
    task: Option<ArrayTask>,
    /// How often Slurm had restarted it. 0 without a job.
    pub restarts: u32,
}

impl EventJob {
    /// The job, if the event has one.
    pub fn of(job: Option<&Job>) -> Self {
        let restarts = job.and_then(|job| job.restarts);
        Self {
            id: job.and_then(|job| JobId::new(job.job_id)),
            task: job.and_then(ArrayTask::of),
            restarts: restarts.unwrap_or(0),
        }
    }

    /// The fields of the event for the template that names a job: `job.job_id` of a task is as `4711_2`, since its job id may be the array's.
    pub fn named_in<'a>(&self, fields: &'a Value) -> Cow<'a, Value> {
        let mut fields = Cow::Borrowed(fields);
        if let Some(task) = self.task {
            fields.to_mut()["job"]["job_id"] = task.reference().to_string().into();
        }
        fields
    }

    /// The job that a text names, and the task of an array that it is.
    pub fn target(&self, text: &str) -> Option<(JobId, Option<ArrayTask>)> {
        match text.parse().ok()? {
            JobRef::Job(id) => Some((id, None)),
            JobRef::ArrayTask { array, task } => {
                let task = ArrayTask { array, task };
                let own_id = self.id.filter(|_| self.task == Some(task));
                Some((own_id.unwrap_or(array), Some(task)))
            }
            JobRef::ArrayTasks { .. } | JobRef::HetComponent { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use mesh_events::proto::mesh::job::v1::ArrayInfo;
    use serde_json::json;

    use super::*;
    use crate::domain::planned_action::reference;

    #[test]
    fn the_last_task_of_an_array_is_not_the_array() {
        let job = |job_id, task_id| Job {
            job_id,
            array: Some(ArrayInfo {
                job_id: 120,
                task_id,
                ..ArrayInfo::default()
            }),
            ..Job::default()
        };
        let target = |event_job: &EventJob, field: &str| {
            let fields = json!({"job": {"job_id": "own", "array_job_id": "120"}});
            let fields = event_job.named_in(&fields);
            let text = fields["job"][field].as_str().unwrap_or(field);
            let target = event_job.target(text);
            target.map(|(id, task)| (id.get(), reference(id, task).to_string()))
        };
        let of = |id, name: &str| Some((id, name.to_owned()));
        let last = EventJob::of(Some(&job(120, Some(5))));
        let other = EventJob::of(Some(&job(123, Some(2))));
        let whole = EventJob::of(Some(&job(120, None)));
        assert_eq!(target(&last, "job_id"), of(120, "120_5"));
        assert_eq!(target(&other, "job_id"), of(123, "120_2"));
        for event_job in [last, other, whole, EventJob::of(None)] {
            assert_eq!(target(&event_job, "array_job_id"), of(120, "120"));
            assert_eq!(target(&event_job, "120_7"), of(120, "120_7"));
            for text in ["", "x", "120_[1-5]", "120+1", "1 2"] {
                assert_eq!(target(&event_job, text), None, "{text}");
            }
        }
    }
}
