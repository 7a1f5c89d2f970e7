//! The table at the end.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use comfy_table::{Table, presets};
use integration::scenario::Day;
use integration::{Fact, Marks};
use mesh_events::{Category, Event, EventType};
use serde_json::Value;

use crate::watch::{Seen, Watch};
use crate::{CHAT, PIPELINE, words};

/// Input of the report.
pub struct Report<'a> {
    /// The day.
    pub day: &'a Day,
    /// Facts in the ledger.
    pub facts: &'a [Fact],
    /// Observations on the bus and at the receiver.
    pub watch: &'a Watch,
    /// Marks of jobs and hooks, if there are any.
    pub marks: Option<&'a Marks>,
    /// Answer of `/v1/costs?by=user`.
    pub costs: Value,
    /// Output of `smesh verify`.
    pub verified: Result<&'a str, String>,
}

impl Report<'_> {
    /// Prints all tables.
    pub fn print(&self) {
        self.parts();
        self.types();
        self.latencies();
        self.people();
        let ledger = match &self.verified {
            Ok(printed) => printed.lines().next().unwrap_or_default().to_owned(),
            Err(printed) => printed.clone(),
        };
        anstream::println!(
            "\nledger: {} entries read; smesh verify: {ledger}",
            self.facts.len()
        );
    }

    fn parts(&self) {
        let mut table = table(&["job", "user", "shows", "must come"]);
        for part in &self.day.expected {
            let mut runs: Vec<_> = part.runs.iter().map(|words| words.join(", ")).collect();
            if let Some(words) = part.tasks.values().next() {
                runs.push(format!("{} tasks: {}", part.tasks.len(), words.join(", ")));
            }
            table.add_row([
                part.job.to_string(),
                part.user.clone(),
                part.title.to_owned(),
                runs.join("; "),
            ]);
        }
        print("the day", &table);
    }

    fn types(&self) {
        let mut count = BTreeMap::<EventType, (u32, u32, u32)>::new();
        for fact in self.facts {
            count.entry(fact.kind).or_default().0 += 1;
        }
        let seen = self.watch.seen();
        for delivery in &seen.deliveries {
            let kind = delivery.event().and_then(|event| event.kind().ok());
            if let Some(kind) = kind {
                let row = count.entry(kind).or_default();
                row.1 += 1;
                row.2 += u32::from(delivery.signature == Some(Ok(())));
            }
        }
        let mut table = table(&["event", "in the ledger", "webhooks", "signature verified"]);
        let mut sum = (0, 0, 0);
        for (kind, (ledger, sent, verified)) in count {
            sum = (sum.0 + ledger, sum.1 + sent, sum.2 + verified);
            table.add_row([
                kind.to_string(),
                ledger.to_string(),
                sent.to_string(),
                verified.to_string(),
            ]);
        }
        table.add_row([
            "all".to_owned(),
            sum.0.to_string(),
            sum.1.to_string(),
            sum.2.to_string(),
        ]);
        let title = format!("events by type (endpoint {PIPELINE} gets all but baselines)");
        print(&title, &table);
        let path = format!("/{CHAT}");
        let chats = seen
            .deliveries
            .iter()
            .filter(|delivery| delivery.path == path);
        anstream::println!("and {} messages to the chat endpoint", chats.count());
    }

    fn latencies(&self) {
        let seen = self.watch.seen();
        let mut rows = Vec::new();
        if let Some(marks) = self.marks {
            let hook = |event: &Event| moment(marks, "PrologSlurmctld", event);
            let end = |event: &Event| moment(marks, "end", event);
            let started = |kind| kind == EventType::JobStarted;
            // A killed script wrote no last mark.
            let ended = |kind: EventType| kind.is_end();
            rows.extend([
                (
                    "PrologSlurmctld called → job.started on the bus",
                    to_bus(&seen, started, hook),
                ),
                ("… → at the receiver", to_receiver(&seen, started, hook)),
                (
                    "script's last line → its end on the bus",
                    to_bus(&seen, ended, end),
                ),
                ("… → at the receiver", to_receiver(&seen, ended, end)),
            ]);
        }
        let any = |kind: EventType| kind.category() != Category::Capture;
        rows.push((
            "event on the bus → POST complete at the receiver",
            to_receiver(&seen, any, |event| seen.on_bus(&event.id)),
        ));
        let mut table = table(&[
            "from → to, by this process's monotonic clock",
            "n",
            "p50",
            "max",
        ]);
        for (what, mut times) in rows {
            times.sort_unstable();
            let show = |time: Option<&Duration>| {
                time.map_or("–".to_owned(), |time| format!("{} ms", time.as_millis()))
            };
            table.add_row([
                what.to_owned(),
                times.len().to_string(),
                show(times.get(times.len() / 2)),
                show(times.last()),
            ]);
        }
        print("latency", &table);
    }

    fn people(&self) {
        let mut table = table(&["person", "runs", "cost"]);
        let none = Vec::new();
        let mut rows: Vec<&Value> = self.costs["rows"]
            .as_array()
            .unwrap_or(&none)
            .iter()
            .collect();
        rows.sort_by_key(|row| row["key"].as_str());
        for row in rows {
            let user = row["key"].as_str().unwrap_or_default();
            let micros = row["total_micros"]
                .as_str()
                .and_then(|text| text.parse().ok());
            table.add_row([
                self.person(user),
                row["runs"].to_string(),
                micros.map_or_else(
                    || "no price".to_owned(),
                    |micros| words::amount(micros, row["currency"].as_str().unwrap_or_default()),
                ),
            ]);
        }
        print("cost per person", &table);
    }

    /// `Alice Adams (alice)`, from any event that names her.
    fn person(&self, user: &str) -> String {
        let owners = self
            .facts
            .iter()
            .filter_map(|fact| fact.event.owner.as_ref());
        let name = owners
            .filter(|owner| owner.user == user)
            .find_map(|owner| Some(owner.identity.as_ref()?.name.clone()));
        name.map_or(user.to_owned(), |name| format!("{name} ({user})"))
    }
}

fn moment(marks: &Marks, what: &str, event: &Event) -> Option<Instant> {
    let job = event.job()?;
    let task = job.array.as_ref().and_then(|array| array.task_id);
    let id = match (&job.array, task) {
        (Some(array), Some(task)) => format!("{}_{task}", array.job_id),
        _ => job.job_id.to_string(),
    };
    marks.when(what, &id, job.restarts?)
}

fn to_bus(
    seen: &Seen,
    which: impl Fn(EventType) -> bool,
    from: impl Fn(&Event) -> Option<Instant>,
) -> Vec<Duration> {
    let times = seen.events.iter().filter_map(|(at, event)| {
        let from = from(event).filter(|_| event.kind().is_ok_and(&which))?;
        Some(at.saturating_duration_since(from))
    });
    times.collect()
}

fn to_receiver(
    seen: &Seen,
    which: impl Fn(EventType) -> bool,
    from: impl Fn(&Event) -> Option<Instant>,
) -> Vec<Duration> {
    let times = seen.deliveries.iter().filter_map(|delivery| {
        let event = delivery.event()?;
        let from = from(&event).filter(|_| event.kind().is_ok_and(&which))?;
        Some(delivery.at.saturating_duration_since(from))
    });
    times.collect()
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_FULL_CONDENSED);
    table.set_header(header);
    table
}

fn print(title: &str, table: &Table) {
    anstream::println!("\n{title}\n{table}");
}
