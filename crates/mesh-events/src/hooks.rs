//! Names of hooks, and who takes their doorbells.
//!
//! A doorbell's subject ends with the hook's name, so the two consumers of MESH_HOOKS are told apart by it. A work queue takes no
//! message for two consumers and keeps what none of them asks for, and NATS has no "all but these": so every name is here, and a name a
//! site made up rings as [`OTHER`].

/// Names in the subject of hooks that site programs made up; ingest takes them.
pub const OTHER: &str = "Other";

/// Name of the hook that `smesh doctor` rings as.
pub const DOCTOR: &str = "Doctor";

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
    OF_JOBS,
    /// What ingest's consumer of MESH_HOOKS asks for.
    OF_JOBS_FILTERS:
    "PrologSlurmctld", "EpilogSlurmctld", "JobComp", "Prolog", "Epilog", "SrunProlog", "SrunEpilog", "TaskProlog", "TaskEpilog",
    "MailProg", "JobSubmit", "CliFilter", "Pam", "strigger-fini", "strigger-time", "Doctor", "Other",
}

taken_by! {
    /// Hooks of nodes, for node-watcher. A strigger is called by its option, strigger(1).
    OF_NODES,
    /// What node-watcher's consumer of MESH_HOOKS asks for.
    OF_NODES_FILTERS:
    "ResumeProgram", "SuspendProgram", "ResumeFailProgram", "HealthCheckProgram", "strigger-down", "strigger-drained",
    "strigger-draining", "strigger-fail", "strigger-idle", "strigger-resume", "strigger-up",
}

/// The hook's name as it is in the lists above, however a site spells it; `None` if it is none of them.
pub fn known(name: &str) -> Option<&'static str> {
    let name = match name.to_ascii_lowercase().as_str() {
        "jobcompscript" => "jobcomp".to_owned(),
        "job_submit" => "jobsubmit".to_owned(),
        "cli_filter" => "clifilter".to_owned(),
        "strigger-drain" => "strigger-drained".to_owned(),
        lower => lower.to_owned(),
    };
    OF_JOBS
        .iter()
        .chain(OF_NODES)
        .find(|known| known.eq_ignore_ascii_case(&name))
        .copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_taken_by_exactly_one() {
        for (names, filters) in [(OF_JOBS, OF_JOBS_FILTERS), (OF_NODES, OF_NODES_FILTERS)] {
            for (name, filter) in names.iter().zip(filters) {
                assert_eq!(
                    crate::subject::doorbell("c", name),
                    filter.replace('*', "c")
                );
            }
        }
        assert!(OF_JOBS.iter().all(|name| !OF_NODES.contains(name)));
        assert!(OF_JOBS.contains(&OTHER) && OF_JOBS.contains(&DOCTOR));
    }

    #[test]
    fn names_are_known_however_they_are_spelt() {
        assert_eq!(known("prologslurmctld"), Some("PrologSlurmctld"));
        assert_eq!(known("strigger-drain"), Some("strigger-drained"));
        assert_eq!(known("job_submit"), Some("JobSubmit"));
        assert_eq!(known("my own hook"), None);
    }

    #[test]
    fn a_name_a_site_made_up_still_finds_its_reader() {
        assert_eq!(
            crate::subject::doorbell("c", "my own hook"),
            "mesh.c.hook.Other"
        );
    }
}
