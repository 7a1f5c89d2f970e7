//! The document of a job for slurmrestd, v0.0.40 and newer.

use serde_json::{Map, Value, json};
use slurm_types::JobId;

use crate::Submission;
use crate::owner::Owner;

/// A job with a chosen id, which starts without a release. slurmctld accepts an id once.
pub(crate) fn job(submission: &Submission, id: JobId, owner: &Owner) -> Value {
    let fields = &submission.fields;
    let work_dir = fields.work_dir.clone().unwrap_or_else(|| owner.home());
    // The node adds the variables of the owner's login, as with `sbatch --get-user-env`.
    let mut environment = vec!["SLURM_GET_USER_ENV=1".to_owned()];
    let own = owner.environment();
    environment.extend(own.iter().map(|(name, value)| {
        let (name, value) = (name.to_string_lossy(), value.to_string_lossy());
        format!("{name}={value}")
    }));
    let data = &submission.environment;
    environment.extend(data.iter().map(|(name, value)| format!("{name}={value}")));
    let name = fields.job_name.as_deref().unwrap_or("trigger");
    // As with sbatch, the script itself is the first argument.
    let mut argv = vec![name.to_owned()];
    argv.extend(submission.args.iter().cloned());
    let number = |value: u64| json!({ "set": true, "infinite": false, "number": value });
    let text = |text: &Option<String>| text.as_ref().map(|text| json!(text));
    let optional = [
        ("account", text(&fields.account)),
        ("partition", text(&fields.partition)),
        ("qos", text(&fields.qos)),
        (
            "time_limit",
            fields.time.map(|minutes| number(minutes.into())),
        ),
        ("memory_per_node", fields.memory.map(number)),
        ("nodes", fields.nodes.map(|count| json!(count.to_string()))),
        ("tasks", fields.tasks.map(|count| json!(count))),
        ("cpus_per_task", fields.cpus.map(|count| json!(count))),
        (
            "tres_per_node",
            fields
                .gres
                .as_ref()
                .map(|gres| json!(format!("gres/{gres}"))),
        ),
        ("constraints", text(&fields.constraint)),
        ("standard_output", text(&fields.output)),
        ("standard_error", text(&fields.error)),
        ("dependency", text(&fields.dependency)),
        ("array", text(&fields.array)),
        (
            "excluded_nodes",
            fields.exclude.as_ref().map(|nodes| json!([nodes])),
        ),
        ("reservation", text(&fields.reservation)),
        ("wckey", text(&fields.wckey)),
    ];
    let mut job = Map::new();
    let fixed = [
        ("job_id", json!(id.get())),
        ("user_id", json!(owner.name)),
        ("group_id", json!(owner.gid.to_string())),
        ("name", json!(name)),
        (
            "comment",
            json!(submission.key.comment(fields.comment.as_deref())),
        ),
        ("script", json!(submission.script)),
        ("argv", json!(argv)),
        ("environment", json!(environment)),
        ("current_working_directory", json!(work_dir)),
    ];
    job.extend(fixed.map(|(key, value)| (key.to_owned(), value)));
    for (key, value) in optional {
        job.extend(value.map(|value| (key.to_owned(), value)));
    }
    Value::Object(job)
}
