//! A simulated Slurm with a queue of any length: a real slurmctld would be busy with one of 100,000 jobs on a small machine.
//! Commands answer from files, in the form of 22.05.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::script;

/// State of a job in the queue.
#[derive(Clone, Copy, Debug)]
pub enum Phase {
    /// Pending for this reason.
    Pending(&'static str),
    /// It runs.
    Running,
}

/// Submit time of all jobs.
const SUBMIT: u32 = 1_795_305_073;

/// Rows of the requested jobs and columns, with a step if usage is requested: each job ran for ten minutes. Times of day list none.
const SACCT: &str = r#"while [ $# -gt 0 ]; do
  case "$1" in
  --delimiter=*) delimiter=${1#*=} ;;
  --format=*) format=${1#*=} ;;
  -j) list=$2; shift ;;
  esac
  shift
done
exec awk -v submit="$submit" -v d="$delimiter" -v format="$format" -v list="$list" '
function row(id, step,   i, out) {
  v["JobIDRaw"] = v["JobID"] = id step; v["DBIndex"] = id
  v["JobName"] = step == "" ? "train" : "batch"; v["NTasks"] = step == "" ? "" : 1; v["MaxRSS"] = step == "" ? "" : 71139328
  out = v[name[1]]
  for (i = 2; i <= columns; i++) out = out d v[name[i]]
  print out
}
BEGIN {
  columns = split(format, name, ",")
  v["Cluster"] = "testbed"; v["User"] = "alice"; v["UID"] = 20001; v["Group"] = "alice"; v["Account"] = "physics"; v["Partition"] = "cpu"
  v["QOS"] = "normal"; v["State"] = "COMPLETED"; v["ExitCode"] = v["DerivedExitCode"] = "0:0"; v["Reason"] = "None"
  v["Submit"] = v["Eligible"] = submit; v["Start"] = submit + 60; v["End"] = submit + 660; v["ElapsedRaw"] = 600
  v["Suspended"] = "00:00:00"; v["TimelimitRaw"] = 10; v["Timelimit"] = "00:10:00"; v["NNodes"] = 1; v["NodeList"] = "n1"
  v["ReqTRES"] = v["AllocTRES"] = "billing=1,cpu=1,mem=100M,node=1"; v["Priority"] = 1010; v["Flags"] = "SchedMain"
  v["WorkDir"] = "/tmp"; v["TotalCPU"] = v["UserCPU"] = "09:57.250"; v["SystemCPU"] = "00:00:00"
  v["TRESUsageInMax"] = v["TRESUsageInTot"] = "cpu=00:09:57,mem=71139328"; v["MaxRSSNode"] = "n1"; v["MaxRSSTask"] = 0
  for (i = split(list, id, ","); i > 0; i--) { row(id[i], ""); if (format ~ /MaxRSS/) row(id[i], ".batch") }
}'
"#;

/// A folder used as `bin_dir`.
#[derive(Debug)]
pub struct LongQueue {
    folder: PathBuf,
}

impl LongQueue {
    /// Writes `squeue`, `scontrol` and `sacct` into a folder, without answers yet.
    ///
    /// # Panics
    /// If they cannot be written.
    pub fn new(folder: &Path) -> Self {
        let here = format!("here={}\n", folder.display());
        // A poll requests `%i`. User-written fields are requested with unpredictable separators. Each poll may get the other answer.
        let squeue = r#"for format; do :; done
for word; do [ "$last" != -o ] || format=$word; last=$word; done
case "$format" in *%i*)
  [ ! -e "$here/other" ] || { mv "$here/now" "$here/then"; mv "$here/other" "$here/now"; mv "$here/then" "$here/other"; }
  echo >>"$here/polls"
  exec cat "$here/now/queue" ;;
esac
separator=${format#%A}
exec awk -v s="${separator%%%U*}" '{ print $1 s 20001 s "(null)" s "(null)" s "/tmp" s "train" }' "$here/now/ids"
"#;
        let scontrol = r#"case "$*" in
*ping*) echo "Slurmctld(primary) at bench is UP" ;;
*"show jobs"*) exec cat "$here/now/records" ;;
*) grep -a "^JobId=${5} " "$here/now/records" || { echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; } ;;
esac
"#;
        for (name, text) in [
            ("squeue", squeue),
            ("scontrol", scontrol),
            ("sacct", "exit 0\n"),
        ] {
            script(&folder.join(name), &format!("{here}{text}"));
        }
        Self {
            folder: folder.to_owned(),
        }
    }

    /// The folder.
    pub fn bin_dir(&self) -> &Path {
        &self.folder
    }

    /// Sets the queue.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn show(&self, name: &str, jobs: u32, phase: impl Fn(u32) -> Phase) {
        self.print(name, jobs, phase);
        self.link(name, "now");
    }

    /// Sets a queue that alternates with the previous one.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn flap(&self, name: &str, jobs: u32, phase: impl Fn(u32) -> Phase) {
        self.print(name, jobs, phase);
        self.link(name, "other");
    }

    /// Removes every job from the queue. Accounting has them as completed.
    ///
    /// # Panics
    /// If that cannot be written.
    pub fn complete_all(&self) {
        let text = format!("submit={SUBMIT}\n{SACCT}");
        let new = self.folder.join("new-sacct");
        script(&new, &text);
        fs::rename(new, self.folder.join("sacct")).unwrap();
        self.show("empty", 0, |_| Phase::Running);
    }

    /// Number of polls so far.
    pub fn polls(&self) -> usize {
        fs::read(self.folder.join("polls")).map_or(0, |lines| lines.len())
    }

    fn link(&self, name: &str, link: &str) {
        let new = self.folder.join("new");
        symlink(name, &new).unwrap();
        fs::rename(new, self.folder.join(link)).unwrap();
    }

    fn print(&self, name: &str, jobs: u32, phase: impl Fn(u32) -> Phase) {
        let folder = self.folder.join(name);
        fs::create_dir(&folder).unwrap();
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
            writeln!(queue, "{}", columns.join("\x1f")).unwrap();
            writeln!(ids, "{id}").unwrap();
            let time = |time: &str| time.replace("N/A", "Unknown");
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
            .unwrap();
        }
        fs::write(folder.join("queue"), queue).unwrap();
        fs::write(folder.join("records"), records).unwrap();
        fs::write(folder.join("ids"), ids).unwrap();
    }
}
