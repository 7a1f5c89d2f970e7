//! `GET /v1/budgets` and `GET /v1/budgets/{name}`: budgets by the last evaluation. `POST /v1/budgets` and `DELETE /v1/budgets/{name}`:
//! budgets beside those of files.

use std::sync::Arc;

use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::audit::v1::audit_entry::Act;
use mesh_events::proto::mesh::audit::v1::{AuditEntry, BudgetChanged};
use mesh_events::timestamp;
use mesh_runtime::api::{AuditedRead, Caller, Problem};
use prost::Message as _;
use serde::Serialize;

use super::Api;
use crate::adapters::AuditRow;
use crate::budgets::evaluator::Evaluation;
use crate::budgets::status::BudgetStatus;
use crate::budgets::{Budget, files};
use crate::closings::AUDIT_KIND;

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

/// A stored budget.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct StoredBudget {
    name: String,
}

/// Makes or changes a budget. The body has the keys of a budget in a file. It takes effect with the next reload.
pub(super) async fn set(
    caller: Caller,
    State(api): State<Api>,
    body: Result<Json<serde_json::Value>, JsonRejection>,
) -> Result<(Extension<AuditedRead>, Json<StoredBudget>), Problem> {
    let Json(body) = body.map_err(|error| Problem::bad_request(error.body_text()))?;
    let Some(book) = api.book() else {
        return Err(Problem::not_found("there is no price book"));
    };
    let content = content(&body)?;
    let mut parsed = files::parse_one(&content, &book.currency)
        .map_err(|error| Problem::bad_request(error.to_string()))?;
    let Some(budget) = parsed.pop() else {
        return Err(Problem::bad_request("no budget"));
    };
    let (known, is_of_file) = known(&api, &budget.name).await?;
    let may = |budget: &Budget| budget.may_be_changed_by(&caller, &api.cluster);
    if !may(&budget) || !known.as_ref().is_none_or(may) {
        return Err(Problem::forbidden(
            "only administrators, and coordinators of all of its accounts, may change a budget",
        ));
    }
    if is_of_file {
        return Err(Problem::new(
            StatusCode::CONFLICT,
            format!("budget {:?} is one of a file", budget.name),
        ));
    }
    let now = Utc::now();
    let audit = audit_row(&api, &caller, "set", &budget.name, &content, now);
    let by = (caller.name.as_str(), now.timestamp());
    let stored = api.store.put_budget((&budget.name, &content), by, &audit);
    stored.await.map_err(|error| Problem::internal(&error))?;
    api.closed.notify_one();
    let nothing = AuditedRead::nothing().extension();
    Ok((nothing, Json(StoredBudget { name: budget.name })))
}

/// Deletes a budget of the API.
pub(super) async fn delete(
    caller: Caller,
    State(api): State<Api>,
    Path(name): Path<String>,
) -> Result<(Extension<AuditedRead>, Json<StoredBudget>), Problem> {
    let (known, is_of_file) = known(&api, &name).await?;
    let may_see = |budget: &&Budget| {
        let people = &api.evaluation.borrow().people;
        budget.is_visible_to(&caller, people, &api.cluster)
            || budget.may_be_changed_by(&caller, &api.cluster)
    };
    // A hidden budget does not exist for the caller.
    let Some(budget) = known.as_ref().filter(may_see) else {
        return Err(Problem::not_found(format!("no budget {name:?}")));
    };
    if !budget.may_be_changed_by(&caller, &api.cluster) {
        return Err(Problem::forbidden(
            "only administrators, and coordinators of all of its accounts, may delete a budget",
        ));
    }
    if is_of_file {
        return Err(Problem::new(
            StatusCode::CONFLICT,
            format!("budget {name:?} is one of a file"),
        ));
    }
    let audit = audit_row(&api, &caller, "deleted", &name, "", Utc::now());
    let deleted = api.store.delete_budget(&name, &audit).await;
    deleted.map_err(|error| Problem::internal(&error))?;
    api.closed.notify_one();
    let nothing = AuditedRead::nothing().extension();
    Ok((nothing, Json(StoredBudget { name })))
}

/// The budget of this name, and whether a file has it.
async fn known(api: &Api, name: &str) -> Result<(Option<Budget>, bool), Problem> {
    let of_api = api.store.api_budgets().await;
    let of_api = of_api.map_err(|error| Problem::internal(&error))?;
    if let Some((_, content)) = of_api.iter().find(|(known, _)| known == name) {
        let budget = files::parse(content).ok().and_then(|mut found| found.pop());
        return Ok((budget, false));
    }
    let evaluation = Arc::clone(&api.evaluation.borrow());
    let mut budgets = evaluation.budgets.iter().map(|(budget, _)| budget);
    let of_file = budgets.find(|budget| budget.name == name).cloned();
    let is_of_file = of_file.is_some();
    Ok((of_file, is_of_file))
}

/// A budget as in a file.
fn content(body: &serde_json::Value) -> Result<String, Problem> {
    let table = toml::Value::try_from(body)
        .ok()
        .filter(toml::Value::is_table);
    let table = table.ok_or_else(|| Problem::bad_request("the body is not an object of keys"))?;
    let file = std::collections::BTreeMap::from([("budget", vec![table])]);
    toml::to_string(&file).map_err(|error| Problem::bad_request(error.to_string()))
}

fn audit_row(
    api: &Api,
    caller: &Caller,
    what: &str,
    name: &str,
    content: &str,
    now: DateTime<Utc>,
) -> AuditRow {
    let audit_id = uuid::Uuid::new_v4().to_string();
    let entry = AuditEntry {
        id: audit_id.clone(),
        cluster: api.cluster.clone(),
        kind: AUDIT_KIND.to_owned(),
        at: Some(timestamp(now)),
        service: "cost-engine".to_owned(),
        act: Some(Act::Budget(BudgetChanged {
            what: what.to_owned(),
            budget: name.to_owned(),
            content: content.to_owned(),
            made_by: caller.name.clone(),
        })),
    };
    AuditRow {
        audit_id,
        cluster: api.cluster.clone(),
        body: entry.encode_to_vec(),
    }
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
