//! `GET /v1/budgets` and `GET /v1/budgets/{name}`: budgets by the last evaluation.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::{Extension, Json};
use chrono::{DateTime, Utc};
use mesh_runtime::api::{AuditedRead, Caller, Problem};
use serde::Serialize;

use super::Api;
use crate::budgets::Budget;
use crate::budgets::evaluator::Evaluation;
use crate::budgets::status::BudgetStatus;

/// Budgets that the caller may see.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct BudgetList {
    /// Time of the evaluation. Absent before the first one, and without budgets.
    as_of: Option<DateTime<Utc>>,
    /// The budgets, in the order of their files.
    budgets: Vec<BudgetStatus>,
}

/// A budget with the time of its evaluation.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct BudgetDetail {
    as_of: Option<DateTime<Utc>>,
    #[serde(flatten)]
    budget: BudgetStatus,
}

pub(super) async fn list(
    caller: Caller,
    State(api): State<Api>,
) -> (Extension<AuditedRead>, Json<BudgetList>) {
    let evaluation = Arc::clone(&api.evaluation.borrow());
    let mut audited_read = AuditedRead::to(&caller);
    let mut budgets = Vec::new();
    for (budget, status) in &evaluation.budgets {
        if budget.is_visible_to(&caller, &evaluation.people, &api.cluster) {
            audit(&mut audited_read, budget, &evaluation);
            budgets.push(status.clone());
        }
    }
    let as_of = evaluation.as_of;
    (
        audited_read.extension(),
        Json(BudgetList { as_of, budgets }),
    )
}

pub(super) async fn show(
    caller: Caller,
    State(api): State<Api>,
    Path(name): Path<String>,
) -> Result<(Extension<AuditedRead>, Json<BudgetDetail>), Problem> {
    let evaluation = Arc::clone(&api.evaluation.borrow());
    let mut budgets = evaluation.budgets.iter();
    let found = budgets.find(|(budget, _)| {
        budget.name == name && budget.is_visible_to(&caller, &evaluation.people, &api.cluster)
    });
    // A hidden budget does not exist for the caller.
    let Some((budget, status)) = found else {
        return Err(Problem::not_found(format!("no budget {name:?}")));
    };
    let mut audited_read = AuditedRead::to(&caller);
    audit(&mut audited_read, budget, &evaluation);
    let detail = BudgetDetail {
        as_of: evaluation.as_of,
        budget: status.clone(),
    };
    Ok((audited_read.extension(), Json(detail)))
}

/// A budget shows what its people spend.
fn audit(audited_read: &mut AuditedRead, budget: &Budget, evaluation: &Evaluation) {
    let owners = budget.owners(&evaluation.people);
    for (_, user) in &owners {
        audited_read.row(user);
    }
    if owners.is_empty() {
        audited_read.row_about_people();
    }
}
