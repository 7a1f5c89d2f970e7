//! A simulated Slurm: commands that answer from files, for queues too long for slurmctld on a small machine. Their output has the form
//! of 22.05.

use std::fmt::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

/// State of a job in the queue.
#[derive(Clone, Copy)]
pub enum Phase {
    /// Pending for this reason.
    Pending(&'static str),
    /// It runs.
    Running,
}

/// Submit time of all jobs.
const SUBMIT: u32 = 1_795_305_073;

/// A folder used as `bin_dir`.
pub struct Printed {
    folder: PathBuf,
}

impl Printed {
    /// Creates the commands, without answers yet.
    pub fn new(folder: &Path) -> anyhow::Result<Self> {
        let here = format!("#!/bin/sh\nhere={}\n", folder.display());
        // A poll requests `%i`. User-written fields are requested with unpredictable separators. Each poll may get the other answer.
        let squeue = r#"for format; do :; done
for word; do [ "$last" != -o ] || format=$word; last=$word; done
case "$format" in *%i*)
  [ ! -e "$here/other" ] || { mv "$here/now" "$here/then"; mv "$here/other" "$here/now"; mv "$here/then" "$here/other"; }
  echo >>"$here/sweeps"
  exec cat "$here/now/queue" ;;
esac
separator=${format#%A}
exec awk -v s="${separator%%%U*}" '{ print $1 s 20001 s "(null)" s "(null)" s "/tmp" s "train" }' "$here/now/ids"
"#;
        let scontrol = r#"case "$*" in
*ping*) echo "Slurmctld(primary) at bench is UP" ;;
*"show jobs"*) exec cat "$here/now/records" ;;
*) exec grep -a "^JobId=${5} " "$here/now/records" ;;
esac
"#;
        for (name, script) in [
            ("squeue", squeue),
            ("scontrol", scontrol),
            ("sacct", "exit 0\n"),
        ] {
            let path = folder.join(name);
            std::fs::write(&path, format!("{here}{script}"))?;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
        }
        Ok(Self {
            folder: folder.to_owned(),
        })
    }

    pub fn bin_dir(&self) -> &Path {
        &self.folder
    }

    /// Sets the queue.
    pub fn show(&self, name: &str, jobs: u32, phase: impl Fn(u32) -> Phase) -> anyhow::Result<()> {
        self.print(name, jobs, phase)?;
        self.link(name, "now")
    }

    /// Sets a queue that alternates with the previous one.
    pub fn flap(&self, name: &str, jobs: u32, phase: impl Fn(u32) -> Phase) -> anyhow::Result<()> {
        self.print(name, jobs, phase)?;
        self.link(name, "other")
    }

    /// Number of polls so far.
    pub fn polls(&self) -> anyhow::Result<usize> {
        let path = self.folder.join("sweeps");
        Ok(if path.exists() {
            std::fs::read(path)?.len()
        } else {
            0
        })
    }

    fn link(&self, name: &str, link: &str) -> anyhow::Result<()> {
        let new = self.folder.join("new");
        symlink(name, &new)?;
        Ok(std::fs::rename(new, self.folder.join(link))?)
    }

    fn print(&self, name: &str, jobs: u32, phase: impl Fn(u32) -> Phase) -> anyhow::Result<()> {
        let folder = self.folder.join(name);
        std::fs::create_dir(&folder)?;
        let (mut queue, mut records, mut ids) = (String::new(), String::new(), String::new());
        for id in 1..=jobs {
            let (state, reason, nodes, start, end) = match phase(id) {
                Phase::Pending(reason) => {
                    ("PENDING", reason, "", "N/A".to_owned(), "N/A".to_owned())
                }
                Phase::Running => {
                    let start = SUBMIT + 60;
                    (
                        "RUNNING",
                        "None",
                        "n1",
                        start.to_string(),
                        (start + 600).to_string(),
                    )
                }
            };
            let columns = [
                &id.to_string(),
                &id.to_string(),
                &id.to_string(),
                "N/A",
                state,
                &SUBMIT.to_string(),
                &start,
                &end,
                "1010",
                "cpu",
                "alice",
                "20001",
                "physics",
                "normal",
                nodes,
                "1",
                "1",
                "10:00",
                reason,
            ];
            // Writing to a String cannot fail.
            writeln!(queue, "{}", columns.join("\x1f")).ok();
            writeln!(ids, "{id}").ok();
            let time = |time: &str| {
                if time == "N/A" {
                    "Unknown".to_owned()
                } else {
                    time.to_owned()
                }
            };
            writeln!(
                records,
                "JobId={id} JobName=train UserId=alice(20001) GroupId=alice(20001) MCS_label=N/A Priority=1010 Nice=0 Account=physics \
                 QOS=normal JobState={state} Reason={reason} Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0 \
                 RunTime=00:00:00 TimeLimit=00:10:00 TimeMin=N/A SubmitTime={SUBMIT} EligibleTime={SUBMIT} AccrueTime={SUBMIT} \
                 StartTime={} EndTime={} Deadline=N/A SuspendTime=None SecsPreSuspend=0 LastSchedEval={SUBMIT} Scheduler=Backfill \
                 Partition=cpu AllocNode:Sid=login:2754 ReqNodeList=(null) ExcNodeList=(null) NodeList={nodes} NumNodes=1 NumCPUs=1 \
                 NumTasks=1 CPUs/Task=1 ReqB:S:C:T=0:0:*:* TRES=cpu=1,mem=100M,node=1,billing=1 Socks/Node=* \
                 NtasksPerN:B:S:C=0:0:*:* CoreSpec=* MinCPUsNode=1 MinMemoryCPU=100M MinTmpDiskNode=0 Features=(null) \
                 DelayBoot=00:00:00 OverSubscribe=OK Contiguous=0 Licenses=(null) Network=(null) Command=(null) WorkDir=/tmp \
                 StdErr=/dev/null StdIn=/dev/null StdOut=/dev/null Power= ",
                time(&start),
                time(&end),
            )
            .ok();
        }
        std::fs::write(folder.join("queue"), queue)?;
        std::fs::write(folder.join("records"), records)?;
        Ok(std::fs::write(folder.join("ids"), ids)?)
    }
}
