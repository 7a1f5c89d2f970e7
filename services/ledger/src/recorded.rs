//! Reads the events that a ledger has recorded, while its service does not run: a service that lost its database restores
//! what it published from them.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;

use chrono::Utc;
use mesh_events::{Category, Event};
use mesh_runtime::api::Visibility;
use mesh_runtime::{BoxError, Context};

use crate::adapters::{DEFAULT_QUERY_TIMEOUT, ExportReader, Store};
use crate::configuration;
use crate::domain::archive::file_name;
use crate::domain::export::ExportLine;
use crate::domain::filter::Filter;
use crate::domain::query::{ListRequest, Query};
use mesh_db::Location;

/// Events per page.
const PAGE_SIZE: u32 = 1_000;

/// The recorded events of some categories, oldest first: those of the archives, then those of the database.
pub struct RecordedEvents {
    store: Store,
    categories: Vec<Category>,
    archives: VecDeque<PathBuf>,
    open: Option<ExportReader>,
    query: Query,
    /// Entries that were erased, or whose archive is not in the folder.
    pub missing: u64,
}

impl RecordedEvents {
    /// Opens the ledger of this configuration for reading. `None` if its file is not on this host.
    ///
    /// # Errors
    /// If the configuration is invalid, or the ledger cannot be read.
    pub async fn open(
        context: &Context,
        categories: &[Category],
    ) -> Result<Option<Self>, BoxError> {
        let config = configuration(context)?;
        let location = config.database(&context.mesh.data_dir)?;
        if let Location::Sqlite(path) = &location
            && !path.exists()
        {
            return Ok(None);
        }
        let store = Store::connect_with(&location, None, 1, DEFAULT_QUERY_TIMEOUT)?;
        let request = ListRequest {
            filter: Filter {
                types: categories
                    .iter()
                    .map(|of| format!("{}.*", of.as_str()))
                    .collect(),
                ..Filter::default()
            },
            limit: Some(PAGE_SIZE),
            ..ListRequest::default()
        };
        let mut recorded = Self {
            query: request.check(Utc::now(), PAGE_SIZE)?,
            categories: categories.to_vec(),
            archives: VecDeque::new(),
            open: None,
            missing: 0,
            store,
        };
        let folder = config.retention.archive_dir(&context.mesh.data_dir);
        for archive in recorded.store.checked_archives(0).await? {
            let archive = archive.authentic()?;
            let path = archive.file.as_ref();
            let path = path.map(|file| folder.join(file_name(&file.path)));
            match path.filter(|path| path.exists()) {
                Some(path) => recorded.archives.push_back(path),
                None => recorded.missing += archive.entries(),
            }
        }
        Ok(Some(recorded))
    }

    /// The next events; none after the last.
    ///
    /// # Errors
    /// If the ledger or an archive cannot be read.
    pub async fn next(&mut self) -> Result<Vec<Event>, BoxError> {
        while self.open.is_some() || !self.archives.is_empty() {
            let events = self.archived()?;
            if !events.is_empty() {
                return Ok(events);
            }
        }
        let rows = self.store.list(&self.query, &Visibility::All).await?;
        let Some(last) = rows.last() else {
            self.store.close().await;
            return Ok(Vec::new());
        };
        self.query.after = Some(last.seq);
        let events = rows.iter().map(|row| Event::from_bytes(&row.body));
        Ok(events.collect::<Result<_, _>>()?)
    }

    /// The next events of the archives. None at the end of a file.
    fn archived(&mut self) -> Result<Vec<Event>, BoxError> {
        let mut line = Vec::new();
        let mut lines = match self.open.take() {
            Some(lines) => lines,
            None => {
                let Some(path) = self.archives.pop_front() else {
                    return Ok(Vec::new());
                };
                let mut lines = ExportReader::open(&path)?;
                // The header.
                lines.next(&mut line)?;
                lines
            }
        };
        let mut events = Vec::new();
        while events.len() < PAGE_SIZE as usize {
            if !lines.next(&mut line)? {
                return Ok(events);
            }
            let read = ExportLine::read(&line).and_then(ExportLine::stored);
            let read = read.ok_or_else(|| io::Error::other("a line of an archive is damaged"))?;
            let Some(payload) = read.payload else {
                continue;
            };
            // An audit entry is no event, and has no category of one.
            let Ok(event) = Event::from_bytes(&payload.body) else {
                continue;
            };
            let is_asked =
                |kind: mesh_events::EventType| self.categories.contains(&kind.category());
            if event.kind().is_ok_and(is_asked) {
                events.push(event);
            }
        }
        self.open = Some(lines);
        Ok(events)
    }
}
