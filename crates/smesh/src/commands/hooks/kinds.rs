//! All hooks, where they run, and their purpose.

/// Hosts on which a hook runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hosts {
    /// Every SlurmctldHost.
    Controllers,
    /// Every node.
    Nodes,
    /// Every login and submit host.
    Logins,
}

impl Hosts {
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
pub enum Installation {
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
pub struct Kind {
    /// Name, as in slurm.conf and in the doorbell.
    pub name: &'static str,
    /// File name of the script.
    pub file: &'static str,
    /// Where it runs.
    pub hosts: Hosts,
    /// How it is installed.
    pub installation: Installation,
    /// One of the three hooks that together report everything.
    pub recommended: bool,
    /// What the hook reports.
    pub about: &'static str,
}

const fn kind(
    name: &'static str,
    file: &'static str,
    hosts: Hosts,
    installation: Installation,
    about: &'static str,
) -> Kind {
    Kind {
        name,
        file,
        hosts,
        installation,
        recommended: false,
        about,
    }
}

/// Every hook, the recommended ones first.
pub const KINDS: &[Kind] = &[
    Kind {
        recommended: true,
        ..kind(
            "PrologSlurmctld",
            "prolog-slurmctld",
            Hosts::Controllers,
            Installation::Parameter,
            "an allocation was created",
        )
    },
    Kind {
        recommended: true,
        ..kind(
            "EpilogSlurmctld",
            "epilog-slurmctld",
            Hosts::Controllers,
            Installation::Parameter,
            "an allocation ended",
        )
    },
    Kind {
        recommended: true,
        ..kind(
            "JobComp",
            "jobcomp",
            Hosts::Controllers,
            Installation::JobComp,
            "the final state of a job",
        )
    },
    kind(
        "JobSubmit",
        "mesh.lua",
        Hosts::Controllers,
        Installation::Lua("JobSubmitPlugins", "job_submit.lua"),
        "a user submits, holds, releases or changes a job",
    ),
    kind(
        "CliFilter",
        "mesh.lua",
        Hosts::Logins,
        Installation::Lua("CliFilterPlugins", "cli_filter.lua"),
        "a job was submitted, with its id",
    ),
    kind(
        "MailProg",
        "mail-prog",
        Hosts::Controllers,
        Installation::SitesOwn,
        "Slurm sends a mail about a job",
    ),
    kind(
        "ResumeProgram",
        "resume-program",
        Hosts::Controllers,
        Installation::SitesOwn,
        "nodes are powered up",
    ),
    kind(
        "SuspendProgram",
        "suspend-program",
        Hosts::Controllers,
        Installation::SitesOwn,
        "nodes are powered down",
    ),
    kind(
        "ResumeFailProgram",
        "resume-fail-program",
        Hosts::Controllers,
        Installation::Parameter,
        "nodes did not come up",
    ),
    kind(
        "strigger-down",
        "strigger-down",
        Hosts::Controllers,
        Installation::Trigger("--down"),
        "nodes went down",
    ),
    kind(
        "strigger-drained",
        "strigger-drained",
        Hosts::Controllers,
        Installation::Trigger("--drained"),
        "nodes are drained",
    ),
    kind(
        "strigger-up",
        "strigger-up",
        Hosts::Controllers,
        Installation::Trigger("--up"),
        "nodes are back",
    ),
    kind(
        "Prolog",
        "prolog",
        Hosts::Nodes,
        Installation::Parameter,
        "a job starts on its first node",
    ),
    kind(
        "Epilog",
        "epilog",
        Hosts::Nodes,
        Installation::Parameter,
        "a job ended on its first node",
    ),
    kind(
        "HealthCheckProgram",
        "health-check-program",
        Hosts::Nodes,
        Installation::SitesOwn,
        "a node is checked",
    ),
    kind(
        "Pam",
        "pam",
        Hosts::Logins,
        Installation::Pam,
        "a user logs in",
    ),
];
