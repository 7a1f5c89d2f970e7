//! The account above each account.

use mesh_db::sql::Sql;
use mesh_runtime::api::AccountParent;

use super::{Store, Transaction};
use crate::budgets::account_tree::AccountTree;
use crate::error::Error;

impl Store {
    /// Reads the parents of all accounts, those of deleted accounts included.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn account_tree(&self) -> Result<AccountTree, Error> {
        const ACTION: &str = "read parents of accounts";
        let sql = Sql::new("SELECT cluster, account, parent FROM account_parents");
        let rows = self.database.rows(ACTION, &sql).await?;
        let mut tree = AccountTree::default();
        for row in rows {
            let read = || -> Result<AccountParent, sqlx::Error> {
                Ok(AccountParent {
                    cluster: row.get("cluster")?,
                    account: row.get("account")?,
                    parent: row.get("parent")?,
                })
            };
            tree.insert(read().map_err(Error::database(ACTION))?);
        }
        Ok(tree)
    }
}

impl Transaction {
    /// Stores the parent of an account. Transactions with several accounts store them in the same order, so that they do not block
    /// each other.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn store_account_parent(&mut self, account: &AccountParent) -> Result<(), Error> {
        let sql = Sql::new("INSERT INTO account_parents (cluster, account, parent) VALUES (")
            .list([
                (&account.cluster).into(),
                (&account.account).into(),
                (&account.parent).into(),
            ])
            .push(") ON CONFLICT (cluster, account) DO UPDATE SET parent = excluded.parent");
        self.run("store parent of account", &sql).await.map(drop)
    }
}
