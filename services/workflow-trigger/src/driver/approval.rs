//! Runs that wait for approval: the approvers are asked once, and the run is refused when nobody has approved it in time.

use chrono::Utc;

use super::{Driver, Step, next_attempt};
use crate::domain::intent::{Intent, IntentState};
use crate::domain::notice;
use crate::error::Error;
use crate::metrics;

impl Driver {
    pub(super) async fn ask(&self, intent: &Intent) -> Result<Step, Error> {
        let now = Utc::now();
        let approval = intent.approval.as_ref();
        let until = approval.and_then(|approval| approval.until);
        let Some(until) = until.filter(|until| *until > now) else {
            let words = match approval.and_then(|approval| approval.within.to_std().ok()) {
                Some(within) => format!(
                    "nobody approved it within {}",
                    humantime::format_duration(within)
                ),
                None => "it has no time limit for its approval".to_owned(),
            };
            if self.store.not_approved(intent, &words, now).await? {
                tracing::info!(reason = words, "run not approved");
                metrics::run(IntentState::Refused.as_str());
            }
            return Ok(Step::Stored);
        };
        if !approval.is_some_and(|approval| approval.is_asked)
            && let Err(words) = self.request_approval(intent, until).await
        {
            tracing::warn!(error = words, "approvers not asked, retrying");
            // Not after its end: a run whose approvers were not asked ends, too.
            let at = next_attempt(&self.config, 0, now).min(until);
            self.store.ask_again(intent, &words, at).await?;
            return Ok(Step::Stored);
        }
        if self.store.asked(intent, until, now).await? {
            tracing::info!(until = %until, "run waits for approval");
        }
        Ok(Step::Stored)
    }

    /// An event for each approver that the rule has now. Why they were not asked, if so.
    async fn request_approval(
        &self,
        intent: &Intent,
        until: chrono::DateTime<Utc>,
    ) -> Result<(), String> {
        let rules = std::sync::Arc::clone(&self.rules.borrow());
        let rule = rules.get(&intent.rule.owner, &intent.rule.name);
        let approval = rule.and_then(|rule| rule.approval.as_ref());
        let approval = approval.ok_or("the rule has no approvers now")?;
        for approver in &approval.by {
            let request = notice::request(intent, approver, until);
            let published = self.bus.publish(&request).await;
            published.map_err(|error| mesh_runtime::error_chain(&error))?;
        }
        Ok(())
    }
}
