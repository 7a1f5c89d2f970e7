//! Reads the events that a ledger has recorded, while its service does not run: a service that lost its database restores
//! what it published from them.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;

use chrono::Utc;
use mesh_events::Event;
use mesh_events::proto::mesh::audit::v1::AuditEntry;
use mesh_runtime::api::Visibility;
use mesh_runtime::{BoxError, Context};
use prost::Message as _;

use crate::adapters::{DEFAULT_QUERY_TIMEOUT, ExportReader, Store};
use crate::configuration;
use crate::domain::archive::file_name;
use crate::domain::export::ExportLine;
use crate::domain::filter::Filter;
use crate::domain::query::{ListRequest, Query};
use crate::domain::record::AUDIT;
use mesh_db::Location;

/// Events per page.
const PAGE_SIZE: u32 = 1_000;

/// Recorded entries, in their order.
#[derive(Clone, Debug, Default)]
pub struct RecordedPage {
    /// Events.
    pub events: Vec<Event>,
    /// Audit entries.
    pub audit: Vec<AuditEntry>,
}

impl RecordedPage {
    /// True if there is nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn len(&self) -> usize {
        self.events.len() + self.audit.len()
    }

    /// Adds the body of an entry, if `is_asked` accepts its type. False if it is neither an event nor an audit entry.
    fn add(&mut self, body: &[u8], is_asked: impl Fn(&str) -> bool) -> bool {
        // An audit entry is no event: it has no type of one.
        if let Ok(event) = Event::from_bytes(body) {
            if is_asked(&event.r#type) {
                self.events.push(event);
            }
            return true;
        }
        match AuditEntry::decode(body) {
            Ok(entry) if entry.act.is_some() => {
                if is_asked(&format!("{AUDIT}.{}", entry.kind)) {
                    self.audit.push(entry);
                }
                true
            }
            _ => false,
        }
    }
}

/// The recorded entries of some types, oldest first: those of the archives, then those of the database.
pub struct RecordedEvents {
    store: Store,
    types: Vec<&'static str>,
    archives: VecDeque<PathBuf>,
    open: Option<ExportReader>,
    query: Query,
    /// Entries that were erased, or whose archive is not in the folder.
    pub missing: u64,
}

impl RecordedEvents {
    /// Opens the ledger of this configuration for reading. Types are such as `job.*` or `audit.cost`. `None` if its file is not on this host.
    ///
    /// # Errors
    /// If the configuration is invalid, or the ledger cannot be read.
    pub async fn open(context: &Context, types: &[&'static str]) -> Result<Option<Self>, BoxError> {
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
                types: types.iter().map(|of| (*of).to_owned()).collect(),
                ..Filter::default()
            },
            limit: Some(PAGE_SIZE),
            ..ListRequest::default()
        };
        let mut recorded = Self {
            query: request.check(Utc::now(), PAGE_SIZE)?,
            types: types.to_vec(),
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

    /// The next entries; none after the last.
    ///
    /// # Errors
    /// If the ledger or an archive cannot be read.
    pub async fn next(&mut self) -> Result<RecordedPage, BoxError> {
        while self.open.is_some() || !self.archives.is_empty() {
            let page = self.archived()?;
            if !page.is_empty() {
                return Ok(page);
            }
        }
        let rows = self.store.list(&self.query, &Visibility::All).await?;
        let Some(last) = rows.last() else {
            self.store.close().await;
            return Ok(RecordedPage::default());
        };
        self.query.after = Some(last.seq);
        let mut page = RecordedPage::default();
        for row in &rows {
            if !page.add(&row.body, |_| true) {
                let text = format!("entry {} cannot be decoded", row.seq);
                return Err(io::Error::other(text).into());
            }
        }
        Ok(page)
    }

    fn is_asked(&self, kind: &str) -> bool {
        self.types
            .iter()
            .any(|asked| match asked.strip_suffix('*') {
                Some(category) => kind.starts_with(category),
                None => kind == *asked,
            })
    }

    /// The next entries of the archives. None at the end of a file.
    fn archived(&mut self) -> Result<RecordedPage, BoxError> {
        let mut line = Vec::new();
        let mut lines = match self.open.take() {
            Some(lines) => lines,
            None => {
                let Some(path) = self.archives.pop_front() else {
                    return Ok(RecordedPage::default());
                };
                let mut lines = ExportReader::open(&path)?;
                // The header.
                lines.next(&mut line)?;
                lines
            }
        };
        let mut page = RecordedPage::default();
        while page.len() < PAGE_SIZE as usize {
            if !lines.next(&mut line)? {
                return Ok(page);
            }
            let read = ExportLine::read(&line).and_then(ExportLine::stored);
            let read = read.ok_or_else(|| io::Error::other("a line of an archive is damaged"))?;
            let Some(payload) = read.payload else {
                continue;
            };
            // What cannot be decoded is not of an asked type.
            page.add(&payload.body, |kind| self.is_asked(kind));
        }
        self.open = Some(lines);
        Ok(page)
    }
}
