//! Time that accounting must still be asked about. It is stored with the watermark, so no restart forgets it.

use super::Collector;
use crate::adapters::store::Meta;
use crate::config::Config;

/// Time that is owed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Debt {
    /// Its begin, in Unix seconds.
    pub from: i64,
    /// Counts what was added since the process began.
    number: u64,
}

/// What a process owes when it begins: the time since the last sweep that was told, at a first start the history that is asked for, and
/// what the process before could not catch up with.
pub(super) fn at_start(meta: &Meta, config: &Config) -> Option<i64> {
    let absence = if meta.baseline_done {
        Some(meta.watermark.saturating_sub(config.overlap_secs()))
    } else {
        let history = config.history_since().ok().flatten();
        history.map(|time| time.timestamp())
    };
    meta.owed_from.into_iter().chain(absence).min()
}

/// What is owed after a sweep. A job that began and ended between two sweeps is seen only if Slurm still had it in memory.
fn after_sweep(meta: &Meta, config: &Config, now: i64) -> Option<i64> {
    let limit = i64::try_from(config.absent_after.as_secs()).unwrap_or(i64::MAX);
    (now.saturating_sub(meta.watermark) > limit).then(|| {
        let from = meta.watermark.saturating_sub(config.overlap_secs());
        meta.owed_from.map_or(from, |owed| owed.min(from))
    })
}

impl Collector {
    /// What is owed.
    pub async fn debt(&self) -> Option<Debt> {
        let core = self.core.lock().await;
        let number = core.debts;
        core.meta.owed_from.map(|from| Debt { from, number })
    }

    /// Waits until more is owed.
    pub async fn owing(&self) {
        self.owing.notified().await;
    }

    /// Notes a sweep that was told completely.
    pub async fn swept(&self, number: u64, began: i64) {
        let mut core = self.core.lock().await;
        if let Some(from) = after_sweep(&core.meta, &self.config, began) {
            tracing::info!(
                last = core.meta.watermark,
                now = began,
                "nobody looked for a while, accounting is asked about it"
            );
            core.meta.owed_from = Some(from);
            core.debts += 1;
            self.owing.notify_one();
        }
        if core.note_unseen(self.config.accounting) {
            self.owing.notify_one();
        }
        core.meta.sweep = number;
        core.meta.watermark = began;
        core.meta.baseline_done = true;
    }

    /// Notes that accounting has told everything until then, or until now. Nothing is noted if more was added meanwhile.
    pub async fn paid(&self, debt: &Debt, until: Option<i64>) {
        let mut core = self.core.lock().await;
        if core.debts == debt.number {
            core.meta.owed_from = until;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(watermark: i64, owed_from: Option<i64>) -> Meta {
        Meta {
            watermark,
            owed_from,
            baseline_done: true,
            ..Meta::default()
        }
    }

    #[test]
    fn a_restart_owes_the_absence_and_what_was_owed_before() {
        let config = Config::default();
        assert_eq!(at_start(&meta(10_000, None), &config), Some(9_400));
        assert_eq!(at_start(&meta(10_000, Some(500)), &config), Some(500));
        assert_eq!(at_start(&meta(10_000, Some(9_900)), &config), Some(9_400));
    }

    #[test]
    fn a_first_start_owes_the_history_that_is_asked_for() {
        let first = Meta::default();
        let history = Config {
            history_since: "1970-01-01T00:01:40Z".into(),
            ..Config::default()
        };
        assert_eq!(at_start(&first, &Config::default()), None);
        assert_eq!(at_start(&first, &history), Some(100));
        // Told once; a later start owes the absence only.
        assert_eq!(at_start(&meta(10_000, None), &history), Some(9_400));
    }

    #[test]
    fn sweeps_far_apart_owe_the_time_between() {
        let config = Config::default();
        assert_eq!(after_sweep(&meta(10_000, None), &config, 10_120), None);
        assert_eq!(
            after_sweep(&meta(10_000, None), &config, 10_121),
            Some(9_400)
        );
        assert_eq!(
            after_sweep(&meta(10_000, Some(7)), &config, 10_121),
            Some(7)
        );
    }

    #[test]
    fn what_an_older_ingest_stored_owes_nothing_more() {
        let stored = r#"{"version":1,"capture_since":5,"watermark":9,"sweep":3,"baseline_done":true,"counts":{}}"#;
        let meta: Meta = serde_json::from_str(stored).unwrap();
        assert_eq!((meta.watermark, meta.owed_from), (9, None));
    }
}
