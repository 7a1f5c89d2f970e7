//! A job to submit.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{FieldError, JobFields, SubmitKey};

/// Longest argument or value of a variable.
const MAX_VALUE_BYTES: usize = 32 << 10;
/// All arguments and variables. Linux allows 2 MiB for a new process; Slurm has variables of its own.
const MAX_VALUES_BYTES: usize = 512 << 10;
/// `max_script_size` of slurm.conf is 4 MiB by default.
const MAX_SCRIPT_BYTES: usize = 4 << 20;
/// Longest name of a variable.
const MAX_VARIABLE_BYTES: usize = 256;
/// First part of the names of all variables.
const VARIABLE_PREFIX: &str = "MESH_";
/// Directives with which sbatch does not answer with the id of one new job of this cluster.
const FORBIDDEN_DIRECTIVES: [&str; 9] = [
    "--wait",
    "-W",
    "--test-only",
    "--clusters",
    "-M",
    "--cluster",
    "--wrap",
    "hetjob",
    "packjob",
];

/// A job to submit once. Data of an event may be in `args`, in the values of `environment` and in `fields`, never in `script`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Submission {
    /// Its key.
    pub key: SubmitKey,
    /// Name of the user whose job it is. Uid and groups are looked up when it is submitted.
    pub owner: String,
    /// The batch script, exactly as its owner wrote it.
    pub script: String,
    /// Arguments of the script.
    #[serde(default)]
    pub args: Vec<String>,
    /// Variables, whose names begin with `MESH_`.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// What the job asks for.
    #[serde(default)]
    pub fields: JobFields,
}

impl Submission {
    /// Checks every part. Contacts nobody.
    ///
    /// # Errors
    /// Names the first field that is not acceptable.
    pub fn validate(&self) -> Result<(), FieldError> {
        check_script(&self.script)?;
        let mut total = 0;
        for (index, argument) in self.args.iter().enumerate() {
            let field = format!("args[{index}]");
            // It separates the components of heterogeneous jobs.
            if argument == ":" {
                return Err(FieldError::new(field, "sbatch drops an argument that is :"));
            }
            total += check_value(&field, argument)?;
        }
        for (name, value) in &self.environment {
            check_variable(name)?;
            total += name.len() + check_value(&format!("environment.{name}"), value)?;
        }
        if total > MAX_VALUES_BYTES {
            let problem = "args and environment together are longer than 512 KiB";
            return Err(FieldError::new("args", problem));
        }
        self.fields.validate()
    }
}

fn check_script(script: &str) -> Result<(), FieldError> {
    let error = |problem: &str| Err(FieldError::new("script", problem));
    if !script.starts_with("#!") {
        return error("it does not begin with #!");
    }
    if script.contains('\0') {
        return error("it contains NUL");
    }
    if script.len() > MAX_SCRIPT_BYTES {
        return error("it is longer than 4 MiB");
    }
    // sbatch reads directives up to the first line that is neither empty nor a comment.
    let lines = script.lines().map(str::trim_end);
    let head = lines.take_while(|line| line.is_empty() || line.starts_with('#'));
    for words in head.filter_map(|line| line.strip_prefix("#SBATCH")) {
        let forbidden = words.split_whitespace().find(|word| {
            let option = word.split('=').next().unwrap_or(word);
            FORBIDDEN_DIRECTIVES.contains(&option)
        });
        if let Some(word) = forbidden {
            return error(&format!("the directive {word} is not supported"));
        }
    }
    Ok(())
}

/// Returns the length.
fn check_value(field: &str, value: &str) -> Result<usize, FieldError> {
    if value.contains('\0') {
        return Err(FieldError::new(field, "it contains NUL"));
    }
    if value.len() > MAX_VALUE_BYTES {
        return Err(FieldError::new(field, "it is longer than 32 KiB"));
    }
    Ok(value.len())
}

fn check_variable(name: &str) -> Result<(), FieldError> {
    let plain = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let sane = name.strip_prefix(VARIABLE_PREFIX).is_some_and(|rest| {
        !rest.is_empty() && rest.chars().all(plain) && name.len() <= MAX_VARIABLE_BYTES
    });
    match sane {
        true => Ok(()),
        false => Err(FieldError::new(
            format!("environment.{}", name.escape_debug()),
            "names of variables are MESH_ and capital letters, digits and _",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn submission() -> Submission {
        Submission {
            key: SubmitKey::new("rule", 1, "event", 0),
            owner: "alice".to_owned(),
            script: "#!/bin/sh\n#SBATCH --mem=10\ntrue\n".to_owned(),
            args: Vec::new(),
            environment: BTreeMap::new(),
            fields: JobFields::default(),
        }
    }

    #[test]
    fn data_is_accepted_in_arguments_and_values() {
        let mut submission = submission();
        submission.args = vec![
            "$(id); rm -rf /\n'\"é".to_owned(),
            "--uid=0".to_owned(),
            String::new(),
        ];
        submission.environment.insert(
            "MESH_EVENT_KEY".to_owned(),
            "a,LD_PRELOAD=/tmp/x.so\n".to_owned(),
        );
        assert_eq!(submission.validate(), Ok(()));
        submission.args.push("x".repeat(MAX_VALUE_BYTES));
        assert_eq!(submission.validate(), Ok(()));
    }

    #[test]
    fn faults_are_refused_by_the_name_of_the_field() {
        let check = |field: &str, change: &dyn Fn(&mut Submission)| {
            let mut submission = submission();
            change(&mut submission);
            let error = submission.validate().expect_err(field);
            assert_eq!(error.field, field, "{error}");
        };
        for script in [
            "",
            "echo hello",
            " #!/bin/sh",
            "#!/bin/sh\necho \0",
            "#!/bin/sh\n#SBATCH --wait\n",
            "#!/bin/sh\n\n# x\n#SBATCH --mem=1 -W\n",
            "#!/bin/sh\n#SBATCH --clusters=other\n",
            "#!/bin/sh\n#SBATCH hetjob\n",
        ] {
            check("script", &|submission| {
                submission.script = script.to_owned()
            });
        }
        check("args[1]", &|submission| {
            submission.args = vec![String::new(), "a\0b".to_owned()];
        });
        check("args[0]", &|submission| {
            submission.args = vec!["x".repeat(MAX_VALUE_BYTES + 1)];
        });
        check("args[0]", &|submission| {
            submission.args = vec![":".to_owned()];
        });
        check("args", &|submission| {
            submission.args = vec!["x".repeat(MAX_VALUE_BYTES); 17];
        });
        for name in [
            "LD_PRELOAD",
            "PATH",
            "SBATCH_PARTITION",
            "MESH_",
            "MESH_A=B",
            "MESH_A,PATH",
            "mesh_a",
        ] {
            check(&format!("environment.{name}"), &|submission| {
                submission
                    .environment
                    .insert(name.to_owned(), String::new());
            });
        }
        check("environment.MESH_A", &|submission| {
            submission
                .environment
                .insert("MESH_A".to_owned(), "\0".to_owned());
        });
        check("account", &|submission| {
            submission.fields.account = Some("--uid=0".to_owned());
        });
    }

    #[test]
    fn text_after_the_first_command_is_no_directive() {
        let mut submission = submission();
        submission.script = "#!/bin/sh\ntrue\n#SBATCH --wait\n".to_owned();
        assert_eq!(submission.validate(), Ok(()));
    }
}
