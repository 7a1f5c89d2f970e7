//! Changes of nodes.

use mesh_db::sql::{Row, Sql};

use super::Store;
use super::transaction::Transaction;
use crate::domain::Interval;
use crate::domain::node_costs::NodeState;
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
    /// Changes of nodes by cluster and node, oldest first: of each node the last one until the start of the period, all within the
    /// period, and those after it until the first one by which the node is not usable.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn node_changes(
        &self,
        cluster: Option<&str>,
        (from, to): Interval,
    ) -> Result<Vec<NodeChange>, Error> {
        const ACTION: &str = "read changes of nodes";
        // Per node, so that each lookup reads a part of the index, however old the history is.
        let mut sql = Sql::new(
            "SELECT s.cluster, s.node, s.at, s.seq, s.state, s.instance_id, s.partition_name FROM node_partitions n
             JOIN node_states s ON s.cluster = n.cluster AND s.node = n.node
             WHERE s.at >= COALESCE((SELECT MAX(b.at) FROM node_states b WHERE b.cluster = n.cluster AND b.node = n.node AND b.at <= ",
        )
        .bind(from)
        .push("), ")
        .bind(from)
        .push(
            ") AND s.at <= COALESCE((SELECT MIN(a.at) FROM node_states a WHERE a.cluster = n.cluster AND a.node = n.node
             AND a.state NOT IN ('active', 'planned') AND a.at >= ",
        )
        .bind(to)
        .push("), ")
        .bind(to)
        .push(")");
        if let Some(cluster) = cluster {
            sql = sql.push(" AND n.cluster = ").bind(cluster);
        }
        let sql = sql.push(" ORDER BY s.cluster, s.node, s.at, s.seq");
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
