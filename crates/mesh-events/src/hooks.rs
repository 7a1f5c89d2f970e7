//! Names of hooks, and who takes their doorbells.
//!
//! A doorbell's subject ends with the hook's name, so the two consumers of MESH_HOOKS are told apart by it. A work queue takes no
//! message for two consumers and keeps what none of them asks for, and NATS has no "all but these": so every name is here, and a name a
//! site made up rings as [`OTHER_HOOK`].

/// Names in the subject of hooks that site programs made up; ingest takes them.
pub const OTHER_HOOK: &str = "Other";

/// Name of the hook that `smesh doctor` rings as.
pub const DOCTOR_HOOK: &str = "Doctor";

macro_rules! taken_by {
    ($(#[$about:meta])* $names:ident, $(#[$filter_about:meta])* $filters:ident: $($name:literal),+ $(,)?) => {
        $(#[$about])*
        pub const $names: &[&str] = &[$($name),+];
        $(#[$filter_about])*
        pub const $filters: &[&str] = &[$(concat!("mesh.*.hook.", $name)),+];
    };
}

taken_by! {
    /// Hooks of jobs and logins, for ingest. As slurm.conf(5) calls them; those that are no parameter there have names of ours.
    JOB_HOOKS,
    /// What ingest's consumer of MESH_HOOKS asks for.
    JOB_HOOK_SUBJECTS:
    "PrologSlurmctld", "EpilogSlurmctld", "JobComp", "Prolog", "Epilog", "SrunProlog", "SrunEpilog", "TaskProlog", "TaskEpilog",
    "MailProg", "JobSubmit", "CliFilter", "Pam", "strigger-fini", "strigger-time", "Doctor", "Other",
}

taken_by! {
    /// Hooks of nodes, for node-watcher. A strigger is called by its option, strigger(1).
    NODE_HOOKS,
    /// What node-watcher's consumer of MESH_HOOKS asks for.
    NODE_HOOK_SUBJECTS:
    "ResumeProgram", "SuspendProgram", "ResumeFailProgram", "HealthCheckProgram", "strigger-down", "strigger-drained",
    "strigger-draining", "strigger-fail", "strigger-idle", "strigger-resume", "strigger-up",
}

/// The hook's name as it is in the lists above, however a site spells it; `None` if it is none of them.
pub fn canonical_name(name: &str) -> Option<&'static str> {
    let name = match name.to_ascii_lowercase().as_str() {
        "jobcompscript" => "jobcomp".to_owned(),
        "job_submit" => "jobsubmit".to_owned(),
        "cli_filter" => "clifilter".to_owned(),
        "strigger-drain" => "strigger-drained".to_owned(),
        lower => lower.to_owned(),
    };
    JOB_HOOKS
        .iter()
        .chain(NODE_HOOKS)
        .find(|known| known.eq_ignore_ascii_case(&name))
        .copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_taken_by_exactly_one() {
        for (names, filters) in [
            (JOB_HOOKS, JOB_HOOK_SUBJECTS),
            (NODE_HOOKS, NODE_HOOK_SUBJECTS),
        ] {
            for (name, filter) in names.iter().zip(filters) {
                assert_eq!(
                    crate::subject::doorbell("c", name),
                    filter.replace('*', "c")
                );
            }
        }
        assert!(JOB_HOOKS.iter().all(|name| !NODE_HOOKS.contains(name)));
        assert!(JOB_HOOKS.contains(&OTHER_HOOK) && JOB_HOOKS.contains(&DOCTOR_HOOK));
    }

    #[test]
    fn names_are_known_however_they_are_spelt() {
        assert_eq!(canonical_name("prologslurmctld"), Some("PrologSlurmctld"));
        assert_eq!(canonical_name("strigger-drain"), Some("strigger-drained"));
        assert_eq!(canonical_name("job_submit"), Some("JobSubmit"));
        assert_eq!(canonical_name("my own hook"), None);
    }

    #[test]
    fn a_name_a_site_made_up_still_finds_its_reader() {
        assert_eq!(
            crate::subject::doorbell("c", "my own hook"),
            "mesh.c.hook.Other"
        );
    }
}
