//! Arguments of Slurm's commands. A value is always part of its option's word.

use crate::{JobUpdate, Submission};

/// Arguments of sbatch. The script comes on standard input, which sbatch reads by name, since only a named script takes arguments.
pub(crate) fn sbatch(submission: &Submission, home: &str) -> Vec<String> {
    let fields = &submission.fields;
    let mut arguments = vec![
        "--parsable".to_owned(),
        "--hold".to_owned(),
        // The limits of this process are not those of the user's login.
        "--propagate=NONE".to_owned(),
        // Exactly the variables of sbatch itself, over those of the owner's login. Never `--export=A=1,B=2`, in which a value with a comma sets
        // further variables; and not `--export=A,B`, with which the job's steps get nothing but these (not even PATH, 22.05).
        "--export=ALL".to_owned(),
        "--get-user-env".to_owned(),
        format!(
            "--comment={}",
            submission.key.comment(fields.comment.as_deref())
        ),
        format!("--chdir={}", fields.work_dir.as_deref().unwrap_or(home)),
        format!(
            "--job-name={}",
            fields.job_name.as_deref().unwrap_or("trigger")
        ),
    ];
    let number = |value: Option<u32>| value.map(|value| value.to_string());
    let options = [
        ("account", fields.account.clone()),
        ("partition", fields.partition.clone()),
        ("qos", fields.qos.clone()),
        ("time", number(fields.time)),
        ("mem", fields.memory.map(|mib| format!("{mib}M"))),
        ("nodes", number(fields.nodes)),
        ("ntasks", number(fields.tasks)),
        ("cpus-per-task", number(fields.cpus)),
        ("gres", fields.gres.clone()),
        ("constraint", fields.constraint.clone()),
        ("output", fields.output.clone()),
        ("error", fields.error.clone()),
        ("dependency", fields.dependency.clone()),
        ("array", fields.array.clone()),
        ("exclude", fields.exclude.clone()),
        ("reservation", fields.reservation.clone()),
        ("wckey", fields.wckey.clone()),
    ];
    for (option, value) in options {
        arguments.extend(value.map(|value| format!("--{option}={value}")));
    }
    arguments.push("/dev/stdin".to_owned());
    arguments.extend(submission.args.iter().cloned());
    arguments
}

/// Arguments of `scontrol update`.
pub(crate) fn update(job: &str, update: &JobUpdate) -> Vec<String> {
    let changes = [
        ("TimeLimit", update.time.map(|minutes| minutes.to_string())),
        ("MinMemoryNode", update.memory.map(|mib| mib.to_string())),
        ("NumNodes", update.nodes.map(|count| count.to_string())),
        ("Partition", update.partition.clone()),
        ("ExcNodeList", update.exclude.clone()),
    ];
    let mut arguments = vec!["update".to_owned(), format!("JobId={job}")];
    for (name, value) in changes {
        arguments.extend(value.map(|value| format!("{name}={value}")));
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{JobFields, SubmitKey};

    #[test]
    fn values_never_become_options_or_lists_of_variables() {
        let hostile = "a,LD_PRELOAD=/tmp/x.so";
        let submission = Submission {
            key: SubmitKey::new("rule", 1, "event", 0),
            owner: "alice".to_owned(),
            script: "#!/bin/sh\n".to_owned(),
            args: vec!["--uid=0".to_owned()],
            environment: [("MESH_A", hostile), ("MESH_B", "")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            fields: JobFields {
                comment: Some("of mine".to_owned()),
                time: Some(90),
                memory: Some(512),
                ..JobFields::default()
            },
        };
        let key = submission.key.as_str();
        assert_eq!(
            sbatch(&submission, "/home/alice"),
            [
                "--parsable",
                "--hold",
                "--propagate=NONE",
                "--export=ALL",
                "--get-user-env",
                &format!("--comment={key} of mine"),
                "--chdir=/home/alice",
                "--job-name=trigger",
                "--time=90",
                "--mem=512M",
                "/dev/stdin",
                "--uid=0",
            ]
        );
    }
}
