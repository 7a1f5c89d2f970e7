//! Content of a doorbell: hook, job, nodes, login or mail, and Slurm's variables as evidence. Pure.

use std::ffi::OsString;
use std::time::SystemTime;

use chrono::{DateTime, Utc};
use mesh_events::hooks;
use mesh_events::proto::mesh::hook::v1::{Doorbell, Login, Mail};
use uuid::Uuid;

use crate::evidence::{self, Environment, bounded, variable};
use crate::hosts;

/// Longest host list in a doorbell, in bytes. A longer list is left out, because a truncated one would name other nodes.
const MAX_NODES: usize = 32 << 10;

/// A call of a hook.
#[derive(Debug)]
pub struct Call<'a> {
    /// Slurm's ClusterName.
    pub cluster: &'a str,
    /// The hook.
    pub hook: &'a str,
    /// Host the hook runs on.
    pub host: &'a str,
    /// When it was called.
    pub called_at: SystemTime,
    /// Its environment.
    pub environment: &'a Environment,
    /// Its arguments.
    pub arguments: &'a [OsString],
}

/// Name of the hook, if its environment identifies it.
pub fn hook_of(environment: &Environment) -> Option<&'static str> {
    let has = |name: &str| environment.contains_key(&OsString::from(name));
    // SLURM_SCRIPT_CONTEXT: slurm.conf(5), "PROLOG AND EPILOG SCRIPTS"; not set for the others.
    if let Some(context) = environment.get(&OsString::from("SLURM_SCRIPT_CONTEXT")) {
        return Some(match context.to_str()? {
            "prolog_slurmctld" => "PrologSlurmctld",
            "epilog_slurmctld" => "EpilogSlurmctld",
            "prolog_slurmd" => "Prolog",
            "epilog_slurmd" => "Epilog",
            "prolog_srun" => "SrunProlog",
            "epilog_srun" => "SrunEpilog",
            "prolog_task" => "TaskProlog",
            "epilog_task" => "TaskEpilog",
            _ => return None,
        });
    }
    if has("JOBID") && has("JOBSTATE") {
        Some("JobComp")
    } else if has("SLURM_JOB_MAIL_TYPE") {
        Some("MailProg")
    } else if has("SLURM_RESUME_FILE") {
        Some("ResumeProgram")
    } else if has("PAM_TYPE") && has("PAM_SERVICE") {
        Some("Pam")
    } else if has("SLURMD_NODENAME") && !has("SLURM_JOB_ID") {
        // The only variable this hook gets (seen on 22.05, 24.11, 26.05).
        Some("HealthCheckProgram")
    } else {
        None
    }
}

/// True if a call carries new information. Calls that another node of the same job already reports do not, nor does the end of a
/// login.
pub fn is_news(hook: &str, environment: &Environment) -> bool {
    match hook {
        "Prolog" | "Epilog" => {
            let nodes = variable(environment, "SLURM_JOB_NODELIST")
                .or_else(|| variable(environment, "SLURM_NODELIST"));
            let (Some(nodes), Some(own)) = (nodes, variable(environment, "SLURMD_NODENAME")) else {
                return true;
            };
            hosts::first(&nodes).is_none_or(|first| first == own)
        }
        "Pam" => variable(environment, "PAM_TYPE").is_none_or(|kind| kind == "open_session"),
        _ => true,
    }
}

/// Builds the doorbell of a call, with a new id.
pub fn doorbell(call: &Call<'_>) -> Doorbell {
    let evidence = evidence::carried(call.hook, call.environment);
    let first = call.arguments.first();
    let mut doorbell = Doorbell {
        id: Uuid::now_v7().to_string(),
        hook: bounded(call.hook).chars().take(64).collect(),
        cluster: call.cluster.to_owned(),
        host: call.host.to_owned(),
        called_at: Some(mesh_events::timestamp(DateTime::<Utc>::from(
            call.called_at,
        ))),
        job_id: job_of(&evidence).unwrap_or_default(),
        environment: evidence.into_iter().collect(),
        ..Doorbell::default()
    };
    match call.hook {
        "Pam" => doorbell.login = Some(login(call.environment)),
        "MailProg" => doorbell.mail = Some(mail(call)),
        "HealthCheckProgram" => {
            doorbell.nodes = variable(call.environment, "SLURMD_NODENAME").unwrap_or_default();
        }
        // strigger(1): the argument is the job id, or the node list.
        "strigger-fini" | "strigger-time" => {
            let id = first.and_then(|id| id.to_str()?.parse().ok());
            doorbell.job_id = id.unwrap_or_default();
        }
        hook if hooks::NODE_HOOKS.contains(&hook) => {
            doorbell.nodes = first
                .and_then(|nodes| nodes.to_str())
                .filter(|nodes| nodes.len() <= MAX_NODES)
                .unwrap_or_default()
                .to_owned();
            if hook == hooks::SPOT_NOTICE_HOOK {
                doorbell.arguments =
                    evidence::arguments(&call.arguments[1.min(call.arguments.len())..]);
            }
        }
        _ => doorbell.arguments = evidence::arguments(call.arguments),
    }
    doorbell
}

fn job_of(evidence: &[(String, String)]) -> Option<u32> {
    ["SLURM_JOB_ID", "JOBID", "SLURM_JOBID"]
        .iter()
        .find_map(|name| {
            let (_, value) = evidence.iter().find(|(other, _)| other == name)?;
            value.parse().ok()
        })
}

/// pam_exec(8).
fn login(environment: &Environment) -> Login {
    let value = |name| variable(environment, name).unwrap_or_default();
    Login {
        user: value("PAM_USER"),
        remote_host: value("PAM_RHOST"),
        service: value("PAM_SERVICE"),
        tty: value("PAM_TTY"),
    }
}

/// Slurm calls `mail -s SUBJECT ADDRESS` (slurm.conf(5), MailProg). Its standard input is never read.
fn mail(call: &Call<'_>) -> Mail {
    let subject = call
        .arguments
        .iter()
        .position(|argument| argument == "-s")
        .and_then(|at| call.arguments.get(at + 1));
    Mail {
        r#type: variable(call.environment, "SLURM_JOB_MAIL_TYPE").unwrap_or_default(),
        subject: subject.map(bounded).unwrap_or_default(),
        recipient: call.arguments.last().map(bounded).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use proptest::prelude::*;
    use prost::Message;

    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> Environment {
        pairs
            .iter()
            .map(|(name, value)| (OsString::from(*name), OsString::from(*value)))
            .collect()
    }

    fn ring(hook: &str, environment: &Environment, arguments: &[&str]) -> Doorbell {
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        doorbell(&Call {
            cluster: "c",
            hook,
            host: "h",
            called_at: SystemTime::UNIX_EPOCH,
            environment,
            arguments: &arguments,
        })
    }

    #[test]
    fn the_hook_is_known_from_its_environment() {
        for (pairs, expected) in [
            (
                &[("SLURM_SCRIPT_CONTEXT", "prolog_slurmctld")][..],
                Some("PrologSlurmctld"),
            ),
            (
                &[("SLURM_SCRIPT_CONTEXT", "epilog_slurmctld")],
                Some("EpilogSlurmctld"),
            ),
            (
                &[
                    ("SLURM_SCRIPT_CONTEXT", "prolog_slurmd"),
                    ("SLURMD_NODENAME", "n1"),
                ],
                Some("Prolog"),
            ),
            (
                &[("JOBID", "1"), ("JOBSTATE", "COMPLETED")],
                Some("JobComp"),
            ),
            (
                &[("SLURM_JOB_MAIL_TYPE", "Began"), ("SLURM_JOB_ID", "1")],
                Some("MailProg"),
            ),
            (
                &[("SLURM_RESUME_FILE", "/proc/1/fd/3")],
                Some("ResumeProgram"),
            ),
            (&[("SLURMD_NODENAME", "n1")], Some("HealthCheckProgram")),
            (
                &[("PAM_TYPE", "open_session"), ("PAM_SERVICE", "sshd")],
                Some("Pam"),
            ),
            (&[("JOBID", "1")], None),
            (&[("SLURM_SCRIPT_CONTEXT", "what_is_this")], None),
        ] {
            assert_eq!(hook_of(&environment(pairs)), expected, "{pairs:?}");
        }
    }

    #[test]
    fn one_node_of_a_job_and_each_new_login_send_a_doorbell() {
        let news = |hook: &str, pairs: &[(&str, &str)]| is_news(hook, &environment(pairs));
        for hook in ["Prolog", "Epilog"] {
            let on = |node| {
                news(
                    hook,
                    &[("SLURMD_NODENAME", node), ("SLURM_NODELIST", "n[3-5]")],
                )
            };
            assert!(on("n3") && !on("n4"));
            assert!(news(hook, &[("SLURMD_NODENAME", "n4")]), "who knows");
        }
        assert!(news("Pam", &[("PAM_TYPE", "open_session")]));
        assert!(!news("Pam", &[("PAM_TYPE", "close_session")]));
    }

    #[test]
    fn node_hooks_send_their_nodes_and_job_triggers_their_job() {
        let nothing = environment(&[]);
        for hook in [
            "ResumeProgram",
            "SuspendProgram",
            "ResumeFailProgram",
            "strigger-down",
        ] {
            let doorbell = ring(hook, &nothing, &["n[1-3]"]);
            assert_eq!(
                (doorbell.nodes.as_str(), doorbell.job_id),
                ("n[1-3]", 0),
                "{hook}"
            );
        }
        let notice = r#"{"action": "terminate", "time": "2026-11-26T08:22:00Z"}"#;
        let spot = ring("SpotNotice", &nothing, &["n1", notice]);
        assert_eq!(
            (spot.nodes.as_str(), spot.arguments),
            ("n1", vec![notice.to_owned()])
        );
        assert_eq!(ring("SpotNotice", &nothing, &[]).arguments.len(), 0);
        assert_eq!(ring("strigger-fini", &nothing, &["22"]).job_id, 22);
        let health = ring(
            "HealthCheckProgram",
            &environment(&[("SLURMD_NODENAME", "n4")]),
            &[],
        );
        assert_eq!(health.nodes, "n4");
        let endless = "n1,".repeat(20_000);
        assert_eq!(ring("SuspendProgram", &nothing, &[&endless]).nodes, "");
    }

    #[test]
    fn a_mail_is_its_type_subject_and_address() {
        let doorbell = ring(
            "MailProg",
            &environment(&[("SLURM_JOB_MAIL_TYPE", "Ended"), ("SLURM_JOB_ID", "20")]),
            &["-s", "Slurm Job_id=20 Ended", "ops@example.org"],
        );
        assert_eq!((doorbell.job_id, doorbell.arguments.len()), (20, 0));
        assert_eq!(
            doorbell.mail.unwrap(),
            Mail {
                r#type: "Ended".into(),
                subject: "Slurm Job_id=20 Ended".into(),
                recipient: "ops@example.org".into()
            }
        );
    }

    #[test]
    fn the_job_of_jobcomp_is_found() {
        let environment = environment(&[("JOBID", "7"), ("JOBSTATE", "TIMEOUT")]);
        assert_eq!(ring("JobComp", &environment, &[]).job_id, 7);
    }

    proptest! {
        #[test]
        fn any_environment_makes_a_small_doorbell(values: Vec<Vec<u8>>, huge in 0usize..200_000, hook in "\\PC{0,80}") {
            let mut environment: Environment = values
                .into_iter()
                .enumerate()
                .map(|(n, value)| (format!("SLURM_JOB_X{n}").into(), OsString::from_vec(value)))
                .collect();
            environment.insert("SLURM_JOB_HUGE".into(), "ü".repeat(huge).into());
            environment.insert(OsString::from_vec(vec![b'S', 0xff]), "x".into());
            let argument = "x".repeat(10_000);
            let doorbell = ring(&hook, &environment, &[argument.as_str(); 20]);
            prop_assert!(doorbell.encoded_len() < 160 << 10);
        }
    }
}
