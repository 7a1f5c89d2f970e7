//! What explains the scheduler's decisions, as far as slurmrestd has it. It has neither the use of limits nor priority factors.

use serde_json::Value;

use super::{DIAG, Family, LICENSES, RESERVATIONS, Response, Rest, nothing, unreadable};
use crate::json::Fields;
use crate::record::{CallStats, FIGURES};
use crate::{
    BackfillStats, Error, JobListing, LicenseRecord, Limits, PriorityRow, ReservationRecord,
    RunningRow, SchedulerStats, ShareRecord, parse,
};

impl Rest {
    /// Every job that holds an allocation, as of the last poll of the queue: another list of all jobs would cost seconds.
    pub(crate) async fn running(&self) -> Result<Vec<RunningRow>, Error> {
        if let Some(running) = self.cached_queue().running() {
            return Ok(running);
        }
        self.list_queue().await?;
        Ok(self.cached_queue().running().unwrap_or_default())
    }

    /// Refused: slurmrestd has the limits, but not their use.
    #[allow(clippy::unused_async, reason = "the same form as with commands")]
    pub(crate) async fn limits(&self) -> Result<Limits, Error> {
        Err(Error::NotOverRest {
            question: "how far limits are used",
        })
    }

    /// Refused: slurmrestd has no query for it.
    #[allow(clippy::unused_async, reason = "the same form as with commands")]
    pub(crate) async fn priorities(&self) -> Result<Vec<PriorityRow>, Error> {
        Err(Error::NotOverRest {
            question: "priority factors",
        })
    }

    /// Refused: slurmrestd does not print what squeue does.
    #[allow(clippy::unused_async, reason = "the same form as with commands")]
    pub(crate) async fn job_listing(&self) -> Result<JobListing, Error> {
        Err(Error::NotOverRest {
            question: "the columns of squeue",
        })
    }

    /// Every reservation.
    pub(crate) async fn reservations(&self) -> Result<Vec<ReservationRecord>, Error> {
        self.all(
            RESERVATIONS,
            Family::Controller,
            "reservations",
            "",
            reservation,
        )
        .await
    }

    /// Every license.
    pub(crate) async fn licenses(&self) -> Result<Vec<LicenseRecord>, Error> {
        self.all(LICENSES, Family::Controller, "licenses", "", license)
            .await
    }

    /// Backfill's last cycle.
    pub(crate) async fn backfill(&self) -> Result<BackfillStats, Error> {
        Ok(backfill(&self.diag().await?))
    }

    /// Statistics of slurmctld.
    pub(crate) async fn statistics(&self) -> Result<SchedulerStats, Error> {
        Ok(statistics(&self.diag().await?))
    }

    /// Refused: slurmrestd has them in newer versions only.
    #[allow(clippy::unused_async, reason = "the same form as with commands")]
    pub(crate) async fn shares(&self) -> Result<Vec<ShareRecord>, Error> {
        Err(Error::NotOverRest {
            question: "fairshare",
        })
    }

    async fn diag(&self) -> Result<Value, Error> {
        match self.get(DIAG, Family::Controller, "diag", "").await? {
            Response::Document(body) => {
                serde_json::from_slice(&body).map_err(|error| unreadable(DIAG, &body, &error))
            }
            _ => Err(nothing(DIAG)),
        }
    }
}

fn reservation(value: &Value) -> Option<ReservationRecord> {
    let mut fields = Fields::new(value);
    let record = ReservationRecord {
        name: fields.text("name"),
        start: fields.time("start_time"),
        end: fields.time("end_time"),
        nodes: fields.text("node_list"),
        flags: fields.strings("flags"),
        users: parse::list(&fields.text("users")),
        accounts: parse::list(&fields.text("accounts")),
        licenses: fields.text("licenses"),
        // It follows from the times.
        state: String::new(),
    };
    (!record.name.is_empty() && fields.oddities.count() == 0).then_some(record)
}

fn license(value: &Value) -> Option<LicenseRecord> {
    let mut fields = Fields::new(value);
    let record = LicenseRecord {
        name: fields.text("LicenseName"),
        total: fields.number("Total")?,
        used: fields.number("Used")?,
        reserved: fields.number("Reserved").unwrap_or(0),
    };
    (!record.name.is_empty() && fields.oddities.count() == 0).then_some(record)
}

fn statistics(document: &Value) -> SchedulerStats {
    let mut fields = Fields::new(document);
    let figures = FIGURES.iter().filter_map(|name| {
        let value = fields.signed(&format!("statistics.{name}"))?;
        Some((*name, value))
    });
    SchedulerStats {
        figures: figures.collect(),
        calls_by_type: calls(document, "rpcs_by_message_type", "message_type"),
        calls_by_user: calls(document, "rpcs_by_user", "user"),
    }
}

fn calls(document: &Value, list: &str, name: &str) -> Vec<CallStats> {
    let list = document["statistics"][list].as_array();
    let calls = list.into_iter().flatten().map(|value| {
        let mut fields = Fields::new(value);
        CallStats {
            name: fields.text(name),
            count: fields.number("count").unwrap_or(0),
            average_micros: fields.number("average_time").unwrap_or(0),
            total_micros: fields.number("total_time").unwrap_or(0),
        }
    });
    calls.filter(|calls| !calls.name.is_empty()).collect()
}

fn backfill(document: &Value) -> BackfillStats {
    let mut fields = Fields::new(document);
    BackfillStats {
        last_cycle: fields.time("statistics.bf_when_last_cycle"),
        last_depth: fields.number("statistics.bf_last_depth").unwrap_or(0),
        queue_length: fields.number("statistics.bf_queue_len").unwrap_or(0),
    }
}
