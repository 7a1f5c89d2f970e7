//! Messages about budgets: `user.quota_high`, `user.quota_exceeded`, `user.quota_cleared`.

use mesh_events::from_timestamp;
use mesh_events::proto::mesh::cost::v1::Money;
use mesh_events::proto::mesh::user::v1::{Quota, UserEvent};

use super::{Message, Severity};
use crate::{Text, text};

/// The message about a budget. `None` for other user events.
pub fn of(severity: Severity, word: &str, event: &UserEvent) -> Option<Message> {
    let quota = event.quota.as_ref()?;
    let heading = Text::from("Budget ").code(text::cut(&quota.budget, 80));
    let message = Message::line(
        severity,
        "💶",
        heading.plain(format!(": {word}")),
        used(quota),
    );
    let contributors = quota.contributors.iter().filter_map(|contributor| {
        let amount = contributor.amount.as_ref()?;
        Some(format!("{} {}", contributor.user, text::money(amount)))
    });
    Some(
        message
            .fact("Period", quota.period.as_str())
            .fact("Covers", quota.scope.join(", "))
            .fact("Used up", exhausted(quota))
            .fact("Largest", contributors.collect::<Vec<_>>().join(", ")),
    )
}

/// How much of the amount is used, and what that consists of.
fn used(quota: &Quota) -> Text {
    let amount = quota.amount.as_ref().map_or("–".to_owned(), text::money);
    let cost = |cost: &Option<Money>| cost.as_ref().map_or("no price".to_owned(), text::money);
    let mut sentence = match text::used_percent(quota) {
        Some(percent) => format!(
            "{percent} % of {amount}: {} settled, {} running",
            cost(&quota.settled),
            cost(&quota.in_flight)
        ),
        None => format!("no price for what is used of {amount}"),
    };
    if let Some(committed) = &quota.committed {
        sentence.push_str(&format!(
            ", {} if all running and pending jobs reach their time limits",
            text::money(committed)
        ));
    }
    if quota.unpriced_runs > 0 {
        sentence.push_str(&format!(". {}", text::unpriced(quota.unpriced_runs)));
    }
    if quota.is_forecast {
        sentence.push_str(". The forecast passes the threshold");
    }
    Text::from(sentence)
}

/// When the amount is used up, if the forecast says that it will be.
fn exhausted(quota: &Quota) -> Text {
    match quota.exhausted_p50.as_ref().and_then(from_timestamp) {
        Some(time) => Text::from("likely ").time(time),
        None => Text::new(),
    }
}
