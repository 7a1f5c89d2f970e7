//! Changes of nodes.

use mesh_db::sql::{Row, Sql};

use super::Store;
use super::runs::Transaction;
use crate::domain::node_lines::NodeState;
use crate::error::Error;

/// A change of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeChange {
    /// Cluster.
    pub cluster: String,
    /// Name of the node.
    pub node: String,
    /// Unix seconds.
    pub at: i64,
    /// Number of the event among those of the node.
    pub seq: u64,
    /// What it is doing from then on.
    pub state: NodeState,
    /// Cloud instance id. Empty if unknown.
    pub instance_id: String,
    /// First partition of the node. Empty if it has none.
    pub partition: String,
}

impl Store {
    /// Changes of nodes before a time, by cluster and node, oldest first.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn node_changes(
        &self,
        cluster: Option<&str>,
        before: i64,
    ) -> Result<Vec<NodeChange>, Error> {
        const ACTION: &str = "read changes of nodes";
        let mut sql = Sql::new(
            "SELECT cluster, node, at, seq, state, instance_id, partition_name FROM node_states WHERE at < ",
        )
        .bind(before);
        if let Some(cluster) = cluster {
            sql = sql.push(" AND cluster = ").bind(cluster);
        }
        let sql = sql.push(" ORDER BY cluster, node, at, seq");
        let rows = self.database.rows(ACTION, &sql).await?;
        let read = |row: &Row| {
            Ok(NodeChange {
                cluster: row.get("cluster")?,
                node: row.get("node")?,
                at: row.get("at")?,
                seq: row.get::<i64>("seq")?.unsigned_abs(),
                state: NodeState::from_name(&row.get::<String>("state")?),
                instance_id: row.get("instance_id")?,
                partition: row.get("partition_name")?,
            })
        };
        let changes: Result<_, sqlx::Error> = rows.iter().map(read).collect();
        changes.map_err(Error::database(ACTION))
    }
}

impl Transaction {
    /// Stores a change of a node, unless it is known.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn store_node(&mut self, change: &NodeChange) -> Result<bool, Error> {
        let sql = Sql::new(
            "INSERT INTO node_states (cluster, node, at, seq, state, instance_id, partition_name) VALUES (",
        )
        .list([
            (&change.cluster).into(),
            (&change.node).into(),
            change.at.into(),
            i64::try_from(change.seq).unwrap_or(i64::MAX).into(),
            change.state.as_str().into(),
            (&change.instance_id).into(),
            (&change.partition).into(),
        ])
        .push(") ON CONFLICT DO NOTHING");
        Ok(self.run("store change of node", &sql).await? > 0)
    }
}
