//! Which prices each name and version of a price book stands for.

use mesh_db::sql::Sql;

use super::Store;
use crate::error::Error;
use crate::price_book::PriceBook;

impl Store {
    /// Notes the content of a book under its name and version; false if they stand for other prices already.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn admit(&self, book: &PriceBook) -> Result<bool, Error> {
        const ACTION: &str = "admit price book";
        let label = book.label();
        let mut writer = self.writer().await?;
        let sql = Sql::new("INSERT INTO price_books (label, digest, content) VALUES (")
            .list([
                (&label).into(),
                (&book.digest).into(),
                (&book.content).into(),
            ])
            // A book from before its text was stored gets it.
            .push(") ON CONFLICT (label) DO UPDATE SET content = excluded.content WHERE price_books.digest = excluded.digest AND price_books.content IS NULL");
        let noted = writer.conn().execute(&sql).await;
        noted.map_err(Error::database(ACTION))?;
        let sql = Sql::new("SELECT digest FROM price_books WHERE label = ").bind(&label);
        let row = writer.conn().first(&sql).await;
        let row = row.map_err(Error::database(ACTION))?;
        let known = row.map(|row| row.get::<String>("digest")).transpose();
        Ok(known.map_err(Error::database(ACTION))?.as_ref() == Some(&book.digest))
    }
}
