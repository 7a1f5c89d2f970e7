//! Stores and reads the content of every price book by name and version, and if it has series files by its label in cost events, too.

use std::collections::HashMap;
use std::sync::Arc;

use mesh_db::sql::Sql;

use super::Store;
use super::transaction::Transaction;
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

impl Transaction {
    /// Text of a price book with this label, or without series files this name and version. `None` if it was never stored.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn price_book(&mut self, label: &str) -> Result<Option<String>, Error> {
        const ACTION: &str = "read price book";
        let row = self.first(ACTION, &book_text(label)).await?;
        let content = row.map(|row| row.get::<Option<String>>("content"));
        let content = content.transpose().map_err(Error::database(ACTION))?;
        Ok(content.flatten())
    }
}

/// Price books by their labels, each read from the database once.
pub struct PriceBooks {
    store: Store,
    known: HashMap<String, Option<Arc<PriceBook>>>,
}

impl PriceBooks {
    /// Reads from this database.
    pub fn of(store: &Store) -> Self {
        Self {
            store: store.clone(),
            known: HashMap::new(),
        }
    }

    /// The book of this label. `None` if it was never stored.
    ///
    /// # Errors
    /// If the database refuses, or a stored book cannot be read.
    pub async fn get(&mut self, label: &str) -> Result<Option<Arc<PriceBook>>, Error> {
        if let Some(known) = self.known.get(label) {
            return Ok(known.clone());
        }
        const ACTION: &str = "read price book";
        let rows = self.store.database.rows(ACTION, &book_text(label)).await?;
        let text = rows.first().map(|row| row.get::<Option<String>>("content"));
        let text = text.transpose().map_err(Error::database(ACTION))?.flatten();
        let book = text
            .map(|text| PriceBook::parse(&text, label))
            .transpose()?;
        let book = book.map(Arc::new);
        self.known.insert(label.to_owned(), book.clone());
        Ok(book)
    }
}

/// The insert of a book's content, without what to do if the label is stored already.
fn insert(label: &String, digest: &String, book: &PriceBook) -> Sql {
    Sql::new("INSERT INTO price_books (label, digest, content) VALUES (")
        .list([label.into(), digest.into(), (&book.content).into()])
        .push(")")
}

/// Query for the text of a price book with this label.
fn book_text(label: &str) -> Sql {
    let name_and_version = label.rsplit_once(" #").map_or(label, |(name, _)| name);
    // The longer label first.
    Sql::new("SELECT content FROM price_books WHERE label = ")
        .bind(label)
        .push(" OR label = ")
        .bind(name_and_version)
        .push(" ORDER BY LENGTH(label) DESC")
}
