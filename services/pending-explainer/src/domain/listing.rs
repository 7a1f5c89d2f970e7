//! The newest list of all jobs as squeue prints it, assembled from its chunks.

use chrono::{DateTime, Utc};
use mesh_events::chunks::newest_complete;
use mesh_events::proto::mesh::queue::v1::JobListing;

/// A complete list.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// When squeue was started.
    pub taken_at: DateTime<Utc>,
    /// Letters of squeue's format, one per column.
    pub letters: String,
    /// Titles of the columns.
    pub titles: Vec<String>,
    /// The jobs in squeue's order.
    pub jobs: Vec<Vec<String>>,
}

impl Listing {
    /// Assembles the chunks of one list. `None` while one is missing.
    pub fn from_chunks(chunks: Vec<JobListing>) -> Option<Self> {
        let (taken_at, chunks) = newest_complete(chunks)?;
        let mut listing = Self {
            taken_at,
            ..Self::default()
        };
        for chunk in chunks {
            listing.letters = chunk.letters;
            if !chunk.titles.is_empty() {
                listing.titles = chunk.titles;
            }
            listing
                .jobs
                .extend(chunk.jobs.into_iter().map(|job| job.columns));
        }
        Some(listing)
    }

    /// What a job has in the column of this letter.
    pub fn column<'a>(&self, job: &'a [String], letter: char) -> &'a str {
        let at = self.letters.chars().position(|other| other == letter);
        at.and_then(|at| job.get(at)).map_or("", String::as_str)
    }
}
