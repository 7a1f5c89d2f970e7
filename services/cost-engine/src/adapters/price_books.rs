//! Stores the content of every price book by name and version, and if it has series files by its label in cost events, too.

use mesh_db::sql::Sql;

use super::Store;
use crate::error::Error;
use crate::price_book::PriceBook;

impl Store {
    /// Stores the content of a book under its name and version. False if another content is already stored under them.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn admit(&self, book: &PriceBook) -> Result<bool, Error> {
        const ACTION: &str = "store price book";
        let label = book.name_and_version();
        let begun = self.database.begin().await;
        let mut transaction = begun.map_err(Error::database(ACTION))?;
        let sql = insert(&label, &book.text_digest, book)
            // Fills in the text of a book that was stored without it by an earlier version.
            .push(" ON CONFLICT (label) DO UPDATE SET content = excluded.content WHERE price_books.digest = excluded.digest AND price_books.content IS NULL");
        let noted = transaction.conn().execute(&sql).await;
        noted.map_err(Error::database(ACTION))?;
        let sql = Sql::new("SELECT digest FROM price_books WHERE label = ").bind(&label);
        let row = transaction.conn().first(&sql).await;
        let row = row.map_err(Error::database(ACTION))?;
        let known = row.map(|row| row.get::<String>("digest")).transpose();
        let is_known = known.map_err(Error::database(ACTION))?.as_ref() == Some(&book.text_digest);
        if is_known && book.digest != book.text_digest {
            // Its series files may grow under the same version, so each content has its own row.
            let sql =
                insert(&book.label(), &book.digest, book).push(" ON CONFLICT (label) DO NOTHING");
            let noted = transaction.conn().execute(&sql).await;
            noted.map_err(Error::database(ACTION))?;
        }
        let committed = transaction.commit().await;
        committed.map_err(Error::database(ACTION))?;
        Ok(is_known)
    }
}

/// The insert of a book's content, without what to do if the label is stored already.
fn insert(label: &String, digest: &String, book: &PriceBook) -> Sql {
    Sql::new("INSERT INTO price_books (label, digest, content) VALUES (")
        .list([label.into(), digest.into(), (&book.content).into()])
        .push(")")
}
