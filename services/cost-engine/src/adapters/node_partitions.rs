//! Every node that had a change, with its partitions now.

use std::collections::HashMap;

use mesh_db::sql::{Row, Sql};

use super::Store;
use super::transaction::Transaction;
use crate::error::Error;

/// The partitions of a node since a change.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodePartitions {
    /// Unix seconds.
    pub at: i64,
    /// Number of the event among those of the node.
    pub seq: u64,
    /// The partitions. Empty once the node was removed.
    pub partitions: Vec<String>,
}

/// Names of nodes by cluster and partition.
pub type NodesOfPartitions = HashMap<(String, String), Vec<String>>;

impl Store {
    /// The present nodes of each partition, by name.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn nodes_of_partitions(&self) -> Result<NodesOfPartitions, Error> {
        const ACTION: &str = "read nodes of partitions";
        let sql = Sql::new(
            "SELECT cluster, node, partitions FROM node_partitions WHERE partitions <> '' ORDER BY cluster, node",
        );
        let rows = self.database.rows(ACTION, &sql).await?;
        let mut nodes = NodesOfPartitions::new();
        let read = |row: &Row| -> Result<(String, String, String), sqlx::Error> {
            Ok((
                row.get("cluster")?,
                row.get("node")?,
                row.get("partitions")?,
            ))
        };
        for row in &rows {
            let (cluster, node, partitions) = read(row).map_err(Error::database(ACTION))?;
            for partition in partitions.lines() {
                let place = (cluster.clone(), partition.to_owned());
                nodes.entry(place).or_default().push(node.clone());
            }
        }
        Ok(nodes)
    }
}

impl Transaction {
    /// Stores the partitions of a node, unless a newer change is known.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn store_node_partitions(
        &mut self,
        cluster: &str,
        node: &str,
        known: &NodePartitions,
    ) -> Result<(), Error> {
        let sql = Sql::new(
            "INSERT INTO node_partitions (cluster, node, at, seq, partitions) VALUES (",
        )
        .list([
            cluster.into(),
            node.into(),
            known.at.into(),
            i64::try_from(known.seq).unwrap_or(i64::MAX).into(),
            known.partitions.join("\n").as_str().into(),
        ])
        .push(
            ") ON CONFLICT (cluster, node) DO UPDATE SET at = excluded.at, seq = excluded.seq, partitions = excluded.partitions
               WHERE (excluded.at, excluded.seq) > (node_partitions.at, node_partitions.seq)",
        );
        self.run("store partitions of node", &sql).await.map(drop)
    }
}
