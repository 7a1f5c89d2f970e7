//! Access queries over REST: slurmdbd's associations and users, as slurmrestd passes them on.
//!
//! slurmrestd has no query for slurmdbd's log of changes (up to v0.0.45), so the author of a change is unknown.

use std::collections::BTreeMap;

use super::{ASSOCIATIONS, Family, Rest, USERS};
use crate::{
    AccessRecords, Error,
    json::{self, Association},
};

impl Rest {
    /// Every association of a cluster and every user: two requests of 0.1 to 0.4 s on 22.05, 10 ms on later versions (2 kB for each
    /// association).
    pub(crate) async fn access(
        &self,
        cluster: &str,
        comments: bool,
    ) -> Result<AccessRecords, Error> {
        let api = self.api().await?;
        let version = api.version(Family::Accounting);
        if version.is_some_and(|version| version < 38) {
            // It lacks MaxJobs and most group limits; QOS are numbers.
            return Err(Error::NotServed {
                command: ASSOCIATIONS,
                served: api.served(Family::Accounting),
                needed: "v0.0.38 or v0.0.40 to v0.0.45",
            });
        }
        let of_cluster = format!("cluster={cluster}");
        let found = self
            .all(
                ASSOCIATIONS,
                Family::Accounting,
                "associations",
                &of_cluster,
                json::association,
            )
            .await?;
        let mut defaults = BTreeMap::new();
        let mut associations = Vec::with_capacity(found.len());
        for Association {
            mut record,
            cluster: its,
            is_default,
        } in found
        {
            if its != cluster {
                continue;
            }
            if is_default && !record.user.is_empty() {
                defaults.insert(record.user.clone(), record.account.clone());
            }
            record.comment = record.comment.filter(|_| comments);
            associations.push(record);
        }
        // 22.05 refuses unknown parameters, and always lists coordinators.
        let coordinators = match version {
            Some(40..) => "with_coords=true",
            _ => "",
        };
        let mut users = self
            .all(USERS, Family::Accounting, "users", coordinators, json::user)
            .await?;
        for user in &mut users {
            user.default_account = defaults.remove(&user.user).unwrap_or_default();
        }
        AccessRecords {
            associations,
            users,
        }
        .validate(ASSOCIATIONS)
    }
}
