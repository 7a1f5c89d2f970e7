//! Runs that wait for approval: each approver is asked once, also one who becomes one later, and the run is refused when nobody has approved it
//! in time.

use std::collections::BTreeSet;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use mesh_bus::Backoff;
use tokio_util::sync::CancellationToken;

use super::{Driver, RETRY_DELAY, Step};
use crate::domain::index::Rules;
use crate::domain::intent::{Intent, IntentState};
use crate::domain::notice;
use crate::error::Error;
use crate::metrics;

impl Driver {
    /// Looks at the runs that wait at the start and whenever rules change, until shutdown.
    pub async fn follow_approvers(&self, shutdown: &CancellationToken) {
        let mut rules = self.rules.clone();
        let mut interval = Backoff::fixed(RETRY_DELAY);
        loop {
            rules.mark_unchanged();
            if let Err(error) = self.look_for_new_approvers().await {
                let error = mesh_runtime::error_chain(&error);
                tracing::warn!(error, "new approvers not looked for, retrying");
                if !interval.wait(shutdown).await {
                    return;
                }
                continue;
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                changed = rules.changed() => if changed.is_err() { return },
            }
        }
    }

    async fn look_for_new_approvers(&self) -> Result<(), Error> {
        self.store.look_for_new_approvers(Utc::now()).await?;
        self.due_runs.notify();
        Ok(())
    }

    pub(super) async fn ask(&self, intent: &Intent) -> Result<Step, Error> {
        let now = Utc::now();
        let approval = intent.approval.as_ref();
        let until = approval.and_then(|approval| approval.until);
        let Some(until) = until.filter(|until| *until > now) else {
            return self.not_approved(intent, now).await;
        };
        let rules = Arc::clone(&self.rules.borrow());
        let mut asked = approval.map_or_else(BTreeSet::new, |approval| approval.asked.clone());
        if let Err(words) = self.ask_those(&rules, intent, until, &mut asked).await {
            tracing::warn!(error = words, "approvers not asked, retrying");
            return Ok(Step::Retry(words));
        }
        if self.store.asked(intent, &asked, until).await? {
            tracing::info!(until = %until, "run waits for approval");
        }
        // They changed meanwhile.
        if !Arc::ptr_eq(&rules, &self.rules.borrow()) {
            self.look_for_new_approvers().await?;
        }
        Ok(Step::Stored)
    }

    async fn not_approved(&self, intent: &Intent, now: DateTime<Utc>) -> Result<Step, Error> {
        let within = intent.approval.as_ref();
        let words = match within.and_then(|approval| approval.within.to_std().ok()) {
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
        Ok(Step::Stored)
    }

    /// An event for each approver of the rule who was not asked before. Adds them; why they were not asked, if so.
    async fn ask_those(
        &self,
        rules: &Rules,
        intent: &Intent,
        until: DateTime<Utc>,
        asked: &mut BTreeSet<String>,
    ) -> Result<(), String> {
        let rule = rules.get(&intent.rule.owner, &intent.rule.name);
        // A rule without approvers now may have some later.
        let Some(approval) = rule.and_then(|rule| rule.approval.as_ref()) else {
            return Ok(());
        };
        for approver in approval.by.difference(&asked.clone()) {
            let request = notice::request(intent, approver, until);
            let published = self.bus.publish(&request).await;
            published.map_err(|error| mesh_runtime::error_chain(&error))?;
            asked.insert(approver.clone());
        }
        Ok(())
    }
}
