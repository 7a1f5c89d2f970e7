//! Restores what a recovered database does not have, from the ledger and the bus.

use std::path::Path;

use cost_engine::restore::RestoredRows;
use ledger::recorded::RecordedEvents;
use mesh_runtime::{BoxError, Context};

/// Prepares the next start, which reads from the bus what was delivered.
pub(super) async fn deliveries(context: &Context) -> Result<String, BoxError> {
    webhook_dispatcher::restore(context).await?;
    Ok("the next start reads from the bus what was delivered, and sends the rest; what was delivered just before the stop may be sent again, with the same webhook-id".into())
}

/// Restores costs from the ledger. The next start computes those that are only on the bus.
pub(super) async fn costs(context: &Context, path: &Path) -> Result<String, BoxError> {
    let found = ledger_costs(context, path).await;
    if !matches!(found, Ok(Some((_, 0)))) {
        cost_engine::mark_periods_incomplete(path.to_owned()).await?;
    }
    let restored = match found {
        Ok(Some((restored, missing))) => {
            let missing = match missing {
                0 => String::new(),
                missing => format!("; {missing} of its entries were erased, or their archive is not here: later reports do not correct the closed periods"),
            };
            let periods = match restored.lost_periods {
                0 => String::new(),
                lost => format!("; {lost} closed periods are lost, the ledger has only the SHA-256 of their reports"),
            };
            format!(
                "{} cost events, {} budgets of the API and {} closed periods were restored from the ledger{periods}{missing}",
                restored.costs, restored.budgets, restored.periods
            )
        }
        Ok(None) => "there is no ledger here, so costs of jobs before the events on the bus (14 days), budgets of the API and closed periods are lost".into(),
        Err(error) => format!(
            "the ledger is not readable, so costs of jobs before the events on the bus (14 days), budgets of the API and closed periods are lost: {}",
            mesh_runtime::error_chain(&*error)
        ),
    };
    Ok(restored)
}

/// What was restored, and the number of ledger entries that are gone. `None` without a ledger on this host.
async fn ledger_costs(
    context: &Context,
    path: &Path,
) -> Result<Option<(RestoredRows, u64)>, BoxError> {
    let Some(mut recorded) = RecordedEvents::open(context, cost_engine::restore::TYPES).await?
    else {
        return Ok(None);
    };
    let mut restore = cost_engine::restore(context, path.to_owned()).await?;
    loop {
        let page = recorded.next().await?;
        if page.is_empty() {
            break;
        }
        restore.add(&page.events).await?;
        restore.add_audit(&page.audit);
    }
    let restored = restore.finish().await?;
    Ok(Some((restored, recorded.missing)))
}
