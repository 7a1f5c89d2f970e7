//! Which prices each name and version of a price book stands for.

use super::sqlite::Store;
use crate::error::Error;
use crate::price_book::PriceBook;

impl Store {
    /// Notes the content of a book under its name and version; false if they stand for other prices already.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn admit(&self, book: &PriceBook) -> Result<bool, Error> {
        const ADMIT: &str = "admit price book";
        sqlx::query(
            "INSERT INTO price_books (label, digest) VALUES ($1, $2) ON CONFLICT DO NOTHING",
        )
        .bind(book.label())
        .bind(&book.digest)
        .execute(&self.writer)
        .await
        .map_err(Error::database(ADMIT))?;
        let known: String = sqlx::query_scalar("SELECT digest FROM price_books WHERE label = $1")
            .bind(book.label())
            .fetch_one(&self.writer)
            .await
            .map_err(Error::database(ADMIT))?;
        Ok(known == book.digest)
    }
}
