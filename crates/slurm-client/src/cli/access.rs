//! Queries by `sacctmgr`, which contacts slurmdbd and not slurmctld: access, and downtimes of nodes.
//!
//! `scontrol show assoc_mgr` would be cheaper (slurmctld has everything in memory). On 22.05 it prints neither the QOS of an association,
//! nor coordinators, nor the author of a change, but a lot of usage.

use slurm_types::UnixTime;

use super::{Cli, local_time, malformed};
use crate::drift::Unread;
use crate::record::{AccessRecords, NodeEventRecord, Transaction};
use crate::{Error, metrics, parse};

impl Cli {
    /// Every association of a cluster and every user. Two commands of 0.2 to 0.4 s on 22.05 (slurmdbd's round trips), 10 ms on later
    /// versions. Comments are requested only if `comments` is set: 22.05 has none and refuses the column.
    ///
    /// A response that lacks what every cluster has, or that contradicts itself, is an error, so that access never seems revoked by
    /// mistake.
    pub(crate) async fn access(
        &self,
        cluster: &str,
        comments: bool,
    ) -> Result<AccessRecords, Error> {
        let which = format!("cluster={cluster}");
        let format = parse::association_format(comments);
        let output = self
            .runner
            .run(
                "sacctmgr",
                &["-n", "-P", "show", "assoc", "where", &which, &format],
            )
            .await?;
        let (associations, unread) = parse::associations(&output, comments);
        unread_rows(&unread)?;
        let output = self
            .runner
            .run(
                "sacctmgr",
                &["-n", "-P", "show", "user", "withcoord", parse::USER_FORMAT],
            )
            .await?;
        let (users, unread) = parse::users(&output);
        unread_rows(&unread)?;
        AccessRecords {
            associations,
            users,
        }
        .validate("sacctmgr")
    }

    /// Changes made with sacctmgr since then, by one command; an empty list if there are none.
    pub(crate) async fn transactions(&self, since: UnixTime) -> Result<Vec<Transaction>, Error> {
        let since = format!("start={}", local_time(since)?);
        let output = self
            .runner
            .run(
                "sacctmgr",
                &[
                    "-n",
                    "-P",
                    "show",
                    "transactions",
                    &since,
                    parse::TRANSACTION_FORMAT,
                ],
            )
            .await?;
        let (found, unread) = parse::transactions(&output);
        unread_rows(&unread)?;
        Ok(found)
    }

    /// Downtimes of a cluster's nodes that lasted at some time since then, by one command; an empty list if there are none.
    pub(crate) async fn node_events(
        &self,
        cluster: &str,
        since: UnixTime,
    ) -> Result<Vec<NodeEventRecord>, Error> {
        let which = format!("cluster={cluster}");
        let since = format!("start={}", local_time(since)?);
        let output = self
            .runner
            .run(
                "sacctmgr",
                &[
                    "-n",
                    "-P",
                    "show",
                    "event",
                    "event=node",
                    &which,
                    &since,
                    parse::NODE_EVENT_FORMAT,
                ],
            )
            .await?;
        let (found, unread) = parse::node_events(&output);
        unread_rows(&unread)?;
        Ok(found)
    }
}

fn unread_rows(unread: &Unread) -> Result<(), Error> {
    metrics::unread("sacctmgr", unread.count);
    let problem = "a row does not have the requested columns";
    match unread.count {
        0 => Ok(()),
        _ => Err(malformed("sacctmgr", problem, &unread.first)),
    }
}
