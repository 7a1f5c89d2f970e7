//! Names of hooks, and the service that consumes each hook's doorbells.
//!
//! A doorbell's subject ends with the hook's name, which selects one of the two consumers of MESH_HOOKS. Consumers of a work queue must not
//! overlap, and a message that matches none is never removed. NATS filters cannot exclude subjects. So every name is listed here, and a
//! doorbell with a name of the site's own is published as [`OTHER_HOOK`].

/// Name in the subject for hooks with names of a site's own; consumed by ingest.
pub const OTHER_HOOK: &str = "Other";

/// Name of the hook that `smesh doctor` rings as.
pub const DOCTOR_HOOK: &str = "Doctor";

/// Name of the hook of the SPANK plugin.
pub const SPANK_HOOK: &str = "Spank";

/// Name of the hook that a site calls with a notice of its cloud provider: NodeName or `-`, and the provider's text.
pub const SPOT_NOTICE_HOOK: &str = "SpotNotice";

macro_rules! taken_by {
    ($(#[$about:meta])* $names:ident, $(#[$filter_about:meta])* $filters:ident: $($name:literal),+ $(,)?) => {
        $(#[$about])*
        pub const $names: &[&str] = &[$($name),+];
        $(#[$filter_about])*
        pub const $filters: &[&str] = &[$(concat!("mesh.*.hook.", $name)),+];
    };
}

taken_by! {
    /// Hooks of jobs and logins, consumed by ingest. Named as in slurm.conf(5); names that are no parameter there are ours.
    JOB_HOOKS,
    /// Filter subjects of ingest's consumer of MESH_HOOKS.
    JOB_HOOK_SUBJECTS:
    "PrologSlurmctld", "EpilogSlurmctld", "JobComp", "Prolog", "Epilog", "SrunProlog", "SrunEpilog", "TaskProlog", "TaskEpilog",
    "MailProg", "JobSubmit", "CliFilter", "Pam", "Spank", "strigger-fini", "strigger-time", "Doctor", "Other",
}

taken_by! {
    /// Hooks of nodes, consumed by node-watcher. A strigger is named by its option, strigger(1); SpotNotice is called by the site.
    NODE_HOOKS,
    /// Filter subjects of node-watcher's consumer of MESH_HOOKS.
    NODE_HOOK_SUBJECTS:
    "ResumeProgram", "SuspendProgram", "ResumeFailProgram", "HealthCheckProgram", "strigger-down", "strigger-drained",
    "strigger-draining", "strigger-fail", "strigger-idle", "strigger-resume", "strigger-up", "SpotNotice",
}

/// A hook's name as in the lists above, whatever spelling a site uses; `None` if it is unknown.
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
        assert!(NODE_HOOKS.contains(&SPOT_NOTICE_HOOK));
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
