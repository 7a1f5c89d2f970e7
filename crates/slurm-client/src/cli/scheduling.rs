//! Queries about what explains the scheduler's decisions. Each is one command for the whole cluster.

use super::{Cli, malformed};
use crate::drift::Unread;
use crate::record::{
    BackfillStats, LicenseRecord, Limits, PriorityRow, ReservationRecord, RunningRow,
    SchedulerStats, ShareRecord,
};
use crate::{Error, metrics, parse};

impl Cli {
    /// Every job that holds an allocation.
    pub(crate) async fn running(&self) -> Result<Vec<RunningRow>, Error> {
        let arguments = [
            "-h",
            "-a",
            "-t",
            "RUNNING,SUSPENDED,CONFIGURING,COMPLETING,STOPPED",
            "-O",
            parse::RUNNING_FORMAT,
        ];
        let output = self.runner.run_long("squeue", &arguments).await?;
        let output = output.into_string().map_err(|source| Error::Io {
            command: "squeue",
            source,
        })?;
        all("squeue", parse::running(&output))
    }

    /// Limits of QOS and associations with their use.
    pub(crate) async fn limits(&self) -> Result<Limits, Error> {
        let arguments = ["-o", "show", "assoc_mgr", "flags=qos,assoc"];
        let output = self.runner.run("scontrol", &arguments).await?;
        parse::limits(&output).ok_or_else(|| malformed("scontrol", "no limits", &output))
    }

    /// Every reservation.
    pub(crate) async fn reservations(&self) -> Result<Vec<ReservationRecord>, Error> {
        let arguments = ["-o", "-a", "show", "reservation"];
        let output = self.runner.run("scontrol", &arguments).await?;
        all("scontrol", parse::reservations(&output))
    }

    /// Every license.
    pub(crate) async fn licenses(&self) -> Result<Vec<LicenseRecord>, Error> {
        let arguments = ["-o", "show", "licenses"];
        let output = self.runner.run("scontrol", &arguments).await?;
        all("scontrol", parse::licenses(&output))
    }

    /// Weighted priority factors of every pending job.
    pub(crate) async fn priorities(&self) -> Result<Vec<PriorityRow>, Error> {
        let arguments = ["-h", "-o", parse::PRIORITY_FORMAT];
        let output = self.runner.run("sprio", &arguments).await?;
        all("sprio", parse::priorities(&output))
    }

    /// Backfill's last cycle.
    pub(crate) async fn backfill(&self) -> Result<BackfillStats, Error> {
        let output = self.runner.run("sdiag", &[]).await?;
        parse::backfill(&output)
            .ok_or_else(|| malformed("sdiag", "nothing about backfill", &output))
    }

    /// Statistics of slurmctld.
    pub(crate) async fn statistics(&self) -> Result<SchedulerStats, Error> {
        let output = self.runner.run("sdiag", &[]).await?;
        parse::statistics(&output)
            .ok_or_else(|| malformed("sdiag", "nothing about the scheduler", &output))
    }

    /// Fairshare of every account and user.
    pub(crate) async fn shares(&self) -> Result<Vec<ShareRecord>, Error> {
        let arguments = ["-a", "-n", "-P", "-o", parse::SHARE_FORMAT];
        let output = self.runner.run("sshare", &arguments).await?;
        all("sshare", parse::shares(&output))
    }
}

/// A list of which every line was parsed.
fn all<T>(command: &'static str, (records, unread): (Vec<T>, Unread)) -> Result<Vec<T>, Error> {
    metrics::unread(command, unread.count);
    match unread.count {
        0 => Ok(records),
        _ => Err(malformed(
            command,
            "a record could not be read",
            &unread.first,
        )),
    }
}
