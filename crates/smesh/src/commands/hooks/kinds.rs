//! All hooks, where they run, and their purpose.

/// Where a hook runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Every SlurmctldHost.
    Controllers,
    /// Every node.
    Nodes,
    /// Every login and submit host.
    Logins,
}

impl Place {
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
pub enum How {
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
    pub place: Place,
    /// How it is installed.
    pub how: How,
    /// One of the three hooks that together report everything.
    pub recommended: bool,
    /// What the hook reports.
    pub about: &'static str,
}

const fn kind(
    name: &'static str,
    file: &'static str,
    place: Place,
    how: How,
    about: &'static str,
) -> Kind {
    Kind {
        name,
        file,
        place,
        how,
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
            Place::Controllers,
            How::Parameter,
            "an allocation was created",
        )
    },
    Kind {
        recommended: true,
        ..kind(
            "EpilogSlurmctld",
            "epilog-slurmctld",
            Place::Controllers,
            How::Parameter,
            "an allocation ended",
        )
    },
    Kind {
        recommended: true,
        ..kind(
            "JobComp",
            "jobcomp",
            Place::Controllers,
            How::JobComp,
            "the final state of a job",
        )
    },
    kind(
        "JobSubmit",
        "mesh.lua",
        Place::Controllers,
        How::Lua("JobSubmitPlugins", "job_submit.lua"),
        "a user submits, holds, releases or changes a job",
    ),
    kind(
        "CliFilter",
        "mesh.lua",
        Place::Logins,
        How::Lua("CliFilterPlugins", "cli_filter.lua"),
        "a job was submitted, with its id",
    ),
    kind(
        "MailProg",
        "mail-prog",
        Place::Controllers,
        How::SitesOwn,
        "Slurm sends a mail about a job",
    ),
    kind(
        "ResumeProgram",
        "resume-program",
        Place::Controllers,
        How::SitesOwn,
        "nodes are powered up",
    ),
    kind(
        "SuspendProgram",
        "suspend-program",
        Place::Controllers,
        How::SitesOwn,
        "nodes are powered down",
    ),
    kind(
        "ResumeFailProgram",
        "resume-fail-program",
        Place::Controllers,
        How::Parameter,
        "nodes did not come up",
    ),
    kind(
        "strigger-down",
        "strigger-down",
        Place::Controllers,
        How::Trigger("--down"),
        "nodes went down",
    ),
    kind(
        "strigger-drained",
        "strigger-drained",
        Place::Controllers,
        How::Trigger("--drained"),
        "nodes are drained",
    ),
    kind(
        "strigger-up",
        "strigger-up",
        Place::Controllers,
        How::Trigger("--up"),
        "nodes are back",
    ),
    kind(
        "Prolog",
        "prolog",
        Place::Nodes,
        How::Parameter,
        "a job starts on its first node",
    ),
    kind(
        "Epilog",
        "epilog",
        Place::Nodes,
        How::Parameter,
        "a job ended on its first node",
    ),
    kind(
        "HealthCheckProgram",
        "health-check-program",
        Place::Nodes,
        How::SitesOwn,
        "a node is checked",
    ),
    kind("Pam", "pam", Place::Logins, How::Pam, "a user logs in"),
];
