//! All hooks, where they run, and their purpose.

/// Hosts on which a hook runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookHosts {
    /// Every SlurmctldHost.
    Controllers,
    /// Every node.
    Nodes,
    /// Every login and submit host.
    Logins,
}

impl HookHosts {
    /// Name for display.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Controllers => "every SlurmctldHost",
            Self::Nodes => "every node",
            Self::Logins => "every login host",
        }
    }
}

/// How a hook is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookInstallation {
    /// A parameter of slurm.conf names the script.
    Parameter,
    /// A parameter of slurm.conf names the script. Useful only if the site already has a program there.
    SitesOwn,
    /// JobCompType and JobCompLoc.
    JobComp,
    /// `strigger --set`, with this option.
    Trigger(&'static str),
    /// A line in /etc/pam.d.
    Pam,
    /// A Lua plugin: this parameter, and this file next to slurm.conf.
    Lua(&'static str, &'static str),
}

/// A hook.
#[derive(Clone, Copy, Debug)]
pub struct HookKind {
    /// Name, as in slurm.conf and in the doorbell.
    pub name: &'static str,
    /// File name of the script.
    pub file: &'static str,
    /// Where it runs.
    pub hosts: HookHosts,
    /// How it is installed.
    pub installation: HookInstallation,
    /// One of the three hooks that together report everything.
    pub recommended: bool,
    /// What the hook reports.
    pub about: &'static str,
}

const fn kind(
    name: &'static str,
    file: &'static str,
    hosts: HookHosts,
    installation: HookInstallation,
    about: &'static str,
) -> HookKind {
    HookKind {
        name,
        file,
        hosts,
        installation,
        recommended: false,
        about,
    }
}

/// Every hook, the recommended ones first.
pub const KINDS: &[HookKind] = &[
    HookKind {
        recommended: true,
        ..kind(
            "PrologSlurmctld",
            "prolog-slurmctld",
            HookHosts::Controllers,
            HookInstallation::Parameter,
            "an allocation was created",
        )
    },
    HookKind {
        recommended: true,
        ..kind(
            "EpilogSlurmctld",
            "epilog-slurmctld",
            HookHosts::Controllers,
            HookInstallation::Parameter,
            "an allocation ended",
        )
    },
    HookKind {
        recommended: true,
        ..kind(
            "JobComp",
            "jobcomp",
            HookHosts::Controllers,
            HookInstallation::JobComp,
            "the final state of a job",
        )
    },
    kind(
        "JobSubmit",
        "mesh.lua",
        HookHosts::Controllers,
        HookInstallation::Lua("JobSubmitPlugins", "job_submit.lua"),
        "a user submits, holds, releases or changes a job",
    ),
    kind(
        "CliFilter",
        "mesh.lua",
        HookHosts::Logins,
        HookInstallation::Lua("CliFilterPlugins", "cli_filter.lua"),
        "a job was submitted, with its id",
    ),
    kind(
        "MailProg",
        "mail-prog",
        HookHosts::Controllers,
        HookInstallation::SitesOwn,
        "Slurm sends a mail about a job",
    ),
    kind(
        "ResumeProgram",
        "resume-program",
        HookHosts::Controllers,
        HookInstallation::SitesOwn,
        "nodes are powered up",
    ),
    kind(
        "SuspendProgram",
        "suspend-program",
        HookHosts::Controllers,
        HookInstallation::SitesOwn,
        "nodes are powered down",
    ),
    kind(
        "ResumeFailProgram",
        "resume-fail-program",
        HookHosts::Controllers,
        HookInstallation::Parameter,
        "nodes did not come up",
    ),
    kind(
        "strigger-down",
        "strigger-down",
        HookHosts::Controllers,
        HookInstallation::Trigger("--down"),
        "nodes went down",
    ),
    kind(
        "strigger-drained",
        "strigger-drained",
        HookHosts::Controllers,
        HookInstallation::Trigger("--drained"),
        "nodes are drained",
    ),
    kind(
        "strigger-up",
        "strigger-up",
        HookHosts::Controllers,
        HookInstallation::Trigger("--up"),
        "nodes are back",
    ),
    kind(
        "Prolog",
        "prolog",
        HookHosts::Nodes,
        HookInstallation::Parameter,
        "a job starts on its first node",
    ),
    kind(
        "Epilog",
        "epilog",
        HookHosts::Nodes,
        HookInstallation::Parameter,
        "a job ended on its first node",
    ),
    kind(
        "HealthCheckProgram",
        "health-check-program",
        HookHosts::Nodes,
        HookInstallation::SitesOwn,
        "a node is checked",
    ),
    kind(
        "Pam",
        "pam",
        HookHosts::Logins,
        HookInstallation::Pam,
        "a user logs in",
    ),
];
