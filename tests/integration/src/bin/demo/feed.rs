//! The live feed: one line per event. Coloured on terminals only.

use std::time::Instant;

use anstyle::{AnsiColor, Style};
use integration::Delivery;
use mesh_events::{Category, Event, EventType};

use crate::words;

/// Prints lines. Times count from the start of the demo.
#[derive(Clone, Copy, Debug)]
pub struct Feed {
    started: Instant,
}

const DIM: Style = Style::new().dimmed();
const BOLD: Style = Style::new().bold();
const GREEN: Style = AnsiColor::Green.on_default().bold();
const RED: Style = AnsiColor::Red.on_default().bold();

impl Feed {
    /// A feed whose clock starts now.
    pub const fn new(started: Instant) -> Self {
        Self { started }
    }

    fn time(&self, at: Instant) -> String {
        let seconds = at.saturating_duration_since(self.started).as_secs_f32();
        format!("{seconds:6.2}s")
    }

    /// Prints the title of the next step.
    pub fn heading(&self, text: &str) {
        anstream::println!("\n{BOLD}{text}{BOLD:#}");
    }

    /// Prints a note.
    pub fn note(&self, text: &str) {
        anstream::println!("{DIM}{}  {text}{DIM:#}", self.time(Instant::now()));
    }

    /// Prints a problem.
    pub fn problem(&self, text: &str) {
        anstream::println!("{RED}wrong:{RED:#} {text}");
    }

    /// Prints a success.
    pub fn success(&self, text: &str) {
        anstream::println!("{GREEN}good:{GREEN:#} {text}");
    }

    /// An event on the bus.
    pub fn event(&self, at: Instant, event: &Event) {
        let Ok(kind) = event.kind() else { return };
        let style = style(kind);
        let user = event.owner.as_ref().map_or("", |owner| &owner.user);
        anstream::println!(
            "{}  {style}{:<18}{style:#} {:<10} {user:<6} {}",
            self.time(at),
            kind.to_string(),
            words::subject(event),
            words::event(kind, event),
        );
    }

    /// A delivery.
    pub fn delivery(&self, delivery: &Delivery, after_bus: Option<Instant>) {
        let endpoint = delivery.path.trim_start_matches('/');
        let time = self.time(delivery.at);
        let Some(event) = delivery.event() else {
            let text = words::chat(&delivery.body);
            anstream::println!("{DIM}{time}  → {endpoint:<16} {text}{DIM:#}");
            return;
        };
        let signature = match &delivery.signature {
            Some(Ok(())) => "signature verified",
            Some(Err(_)) => "SIGNATURE WRONG",
            None => "not signed",
        };
        let delay = after_bus.map_or(String::new(), |bus| {
            let delay = delivery.at.saturating_duration_since(bus);
            format!(", {} ms after the bus", delay.as_millis())
        });
        anstream::println!(
            "{DIM}{time}  → {endpoint:<16} {:<10} {} {signature}{delay}{DIM:#}",
            words::subject(&event),
            event.r#type,
        );
    }
}

fn style(kind: EventType) -> Style {
    let color = match kind {
        EventType::JobCompleted | EventType::NodeRecovered | EventType::NodeActive => {
            AnsiColor::Green
        }
        EventType::JobStarted | EventType::JobSubmitted => AnsiColor::Blue,
        EventType::JobCancelled | EventType::JobRequeued | EventType::JobPending => {
            AnsiColor::Yellow
        }
        kind if kind.is_end() => AnsiColor::Red,
        kind => match kind.category() {
            Category::Cost => AnsiColor::Magenta,
            Category::Queue => AnsiColor::Yellow,
            Category::Node => AnsiColor::Cyan,
            Category::Job | Category::User | Category::Capture => AnsiColor::White,
        },
    };
    color.on_default()
}
