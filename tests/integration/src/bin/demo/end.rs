//! The end of the demo: waits for the remaining events, prints the tables, and reports what is missing.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use integration::scenario::{self, Day};
use integration::{Cluster, Error, Mesh};

use crate::report::Report;
use crate::triggers::{self, Example};
use crate::watch::Watch;

/// How long the last facts and deliveries may take after the day.
const PATIENCE: Duration = Duration::from_secs(75);
/// How long the result must stay unchanged: several polls, to detect duplicates.
const CALM: Duration = Duration::from_secs(4);

/// The end of a day.
pub struct End<'a> {
    /// The mesh under test.
    pub mesh: &'a Mesh,
    /// Observed events and deliveries.
    pub watch: &'a Watch,
    /// Expected results.
    pub day: &'a Day,
    /// The examples of triggers that were played.
    pub examples: &'a [Example],
    /// The cluster, if it is the demo's own. Its hooks, nodes and chat messages are then checked, too.
    pub cluster: Option<&'a Cluster>,
}

impl End<'_> {
    /// Waits, reports and evaluates.
    pub async fn conclude(&self, started: Instant) -> Result<ExitCode, Error> {
        let mut problems = self.settle().await?;
        let verified = self.mesh.verify().await;
        let facts = self.mesh.facts("").await?;
        Report {
            day: self.day,
            facts: &facts,
            watch: self.watch,
            marks: self.cluster.map(Cluster::clock),
            costs: self.mesh.get("/v1/costs?by=user").await?.json(),
            verified: verified.as_ref().map(String::as_str).map_err(Error::chain),
        }
        .print();
        if !self.examples.is_empty() {
            problems.extend(triggers::print(self.watch.feed(), self.examples));
        }
        problems.extend(verified.err().map(|error| error.chain()));
        Ok(self.verdict(&problems, started))
    }

    /// Waits until nothing is missing, and then a little longer to detect surplus events.
    async fn settle(&self) -> Result<Vec<String>, Error> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let complaints = self.complaints().await?;
            if complaints.is_empty() {
                break;
            }
            if Instant::now() > deadline {
                return Ok(complaints);
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        tokio::time::sleep(CALM).await;
        self.complaints().await
    }

    async fn complaints(&self) -> Result<Vec<String>, Error> {
        let facts = self.mesh.facts("").await?;
        let expected = &self.day.expected;
        let mut complaints = scenario::complaints(expected, &facts);
        complaints.extend(scenario::repeated(&facts));
        complaints.extend(self.watch.complaints(expected, &facts));
        if self.cluster.is_some() {
            complaints.extend(scenario::node_complaints(&facts));
            complaints.extend(self.watch.chat_complaints(expected));
        }
        Ok(complaints)
    }

    fn verdict(&self, problems: &[String], started: Instant) -> ExitCode {
        let feed = self.watch.feed();
        for part in &self.day.impossible {
            feed.note(&format!("{}: not possible here: {}", part.title, part.why));
        }
        for problem in problems {
            feed.problem(problem);
        }
        let took = started.elapsed().as_secs();
        if problems.is_empty() {
            let examples = self.examples.iter();
            let triggered = match examples.filter(|example| example.ran_once()).count() {
                0 => String::new(),
                number => format!(", each of {number} examples of triggers ran once"),
            };
            feed.success(&format!(
                "every expected event and webhook came, none twice in the ledger{triggered}; the run took {took} s"
            ));
            ExitCode::SUCCESS
        } else {
            let count = problems.len();
            feed.problem(&format!(
                "{count} things are not as they must be; the run took {took} s"
            ));
            ExitCode::FAILURE
        }
    }
}
