//! `GET /v1/budgets` and `GET /v1/budgets/{name}`: budgets by the last evaluation. `POST /v1/budgets` and `DELETE /v1/budgets/{name}`
//! change budgets that are not defined in files.

use std::sync::Arc;

use audit_outbox::AuditRow;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::audit::v1::BudgetChanged;
use mesh_events::proto::mesh::audit::v1::audit_entry::Act;
use mesh_runtime::api::{AuditedRead, Caller, Problem};
use serde::Serialize;
use utoipa::ToSchema;

use super::{Api, responses};
use crate::adapters::AUDIT_ENTRIES;
use crate::budgets::evaluator::Evaluation;
use crate::budgets::status::BudgetStatus;
use crate::budgets::{Budget, Clusters, files};

/// Budgets that the caller may see.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct BudgetList {
    /// Time of the evaluation. Absent before the first one, and without budgets.
    as_of: Option<DateTime<Utc>>,
    /// The budgets, in the order of their files.
    budgets: Vec<BudgetStatus>,
}

/// A budget with the time of its evaluation.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct BudgetDetail {
    /// Time of the evaluation.
    as_of: Option<DateTime<Utc>>,
    #[serde(flatten)]
    budget: BudgetStatus,
}

/// Lists the budgets that the caller may see, by the last evaluation.
#[utoipa::path(get, operation_id = "listBudgets", path = "/v1/budgets", tag = "budgets", responses(
    (status = 200, description = "The budgets", body = BudgetList), (status = 401, response = responses::Unauthorized), (status = 503, response = responses::Unavailable),
))]
pub(super) async fn list(
    caller: Caller,
    State(api): State<Api>,
) -> (Extension<AuditedRead>, Json<BudgetList>) {
    let evaluation = Arc::clone(&api.evaluation.borrow());
    let mut audited_read = AuditedRead::to(&caller);
    let mut budgets = Vec::new();
    for (budget, status) in &evaluation.budgets {
        if budget.is_visible_to(&caller, &evaluation.people, &evaluation.clusters) {
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

/// Returns a budget.
#[utoipa::path(get, operation_id = "getBudget", path = "/v1/budgets/{name}", tag = "budgets", params(("name" = String, Path, description = "Name of the budget")), responses(
    (status = 200, description = "The budget", body = BudgetDetail), (status = 401, response = responses::Unauthorized), (status = 404, response = responses::NotFound), (status = 503, response = responses::Unavailable),
))]
pub(super) async fn show(
    caller: Caller,
    State(api): State<Api>,
    Path(name): Path<String>,
) -> Result<(Extension<AuditedRead>, Json<BudgetDetail>), Problem> {
    let evaluation = Arc::clone(&api.evaluation.borrow());
    let mut budgets = evaluation.budgets.iter();
    let found = budgets.find(|(budget, _)| {
        budget.name == name
            && budget.is_visible_to(&caller, &evaluation.people, &evaluation.clusters)
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
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct StoredBudget {
    /// Name of the budget.
    name: String,
}

/// Most budgets of the API, because each is evaluated every minute.
const MAX_API_BUDGETS: usize = 1000;

/// A budget, with the keys of a budget in a file.
#[derive(ToSchema)]
#[allow(dead_code, reason = "it describes what the API takes")]
pub(super) struct NewBudget {
    /// Name, which identifies it.
    name: String,
    /// What it covers: names, or lists of them, by `identity`, `user`, `account`, `partition`, `qos`, `tag` or `cluster`. `subtree = true`
    /// includes the accounts below.
    #[schema(value_type = Object)]
    scope: serde_json::Value,
    /// `month`, `quarter`, `year`, or a rolling period such as `rolling 30d`. Not with `from` and `to`. Default: `month`.
    period: Option<String>,
    /// Start of a fixed period.
    from: Option<String>,
    /// End of a fixed period.
    to: Option<String>,
    /// Time zone of the periods, such as `Europe/Berlin`. Default: UTC.
    timezone: Option<String>,
    /// Amount per period, above 0, such as `3000.00`.
    amount: String,
    /// Currency. Default: that of the price book, which is the only one allowed.
    currency: Option<String>,
    /// What is compared with the amount: `settled`, `in_flight` or `committed`. Default: `in_flight`.
    counts: Option<String>,
    /// Thresholds in percent, ascending.
    thresholds: Option<Vec<u32>>,
    /// Threshold of the forecast in percent. 0 is off.
    forecast: Option<u32>,
    /// Who is notified besides administrators: `owner`, `coordinators`.
    notify: Option<Vec<String>>,
}

/// Makes or changes a budget. It takes effect with the next reload.
#[utoipa::path(post, operation_id = "setBudget", path = "/v1/budgets", tag = "budgets", request_body = NewBudget, responses(
    (status = 200, description = "The name of the budget", body = StoredBudget), (status = 400, response = responses::BadRequest), (status = 401, response = responses::Unauthorized), (status = 403, response = responses::Forbidden), (status = 409, response = responses::Conflict), (status = 503, response = responses::Unavailable),
))]
pub(super) async fn set(
    caller: Caller,
    State(api): State<Api>,
    body: Result<Json<serde_json::Value>, JsonRejection>,
) -> Result<(Extension<AuditedRead>, Json<StoredBudget>), Problem> {
    let Json(body) = body.map_err(|error| Problem::bad_request(error.body_text()))?;
    let Some(book) = api.book() else {
        return Err(conflict("there is no price book"));
    };
    if api.file_budgets.is_none() {
        return Err(conflict("budgets are not enabled: set cost-engine.budgets"));
    }
    let content = content(&body)?;
    let parsed = files::parse_one(&content, &book.currency);
    let parsed = parsed.map_err(|error| Problem::bad_request(error.to_string()))?;
    let Some(budget) = parsed else {
        return Err(Problem::bad_request("no budget"));
    };
    let stored = stored_budgets(&api).await?;
    let known = find_budget(&api, &stored, &budget.name);
    let may = |budget: &Budget| budget.may_be_changed_by(&caller, &clusters(&api));
    if !may(&budget) || !known.as_ref().is_none_or(|known| known.may(&caller, may)) {
        return Err(Problem::forbidden(
            "only administrators, and coordinators of all of its accounts on all of its clusters, may change a budget",
        ));
    }
    let known_content = match known {
        Some(KnownBudget::File(_)) => return Err(in_file(&budget.name)),
        Some(KnownBudget::Api(content, _)) => Some(content),
        None if stored.len() >= MAX_API_BUDGETS => {
            return Err(conflict(format!(
                "there are {MAX_API_BUDGETS} budgets of the API: delete some first"
            )));
        }
        None => None,
    };
    let now = Utc::now();
    let audit = audit_row(&api, &caller, BudgetAct::Set, (&budget.name, &content), now);
    let by = (caller.name.as_str(), now.timestamp());
    let stored = api
        .store
        .put_budget((&budget.name, &content), known_content, by, &audit);
    if !stored.await? {
        return Err(changed_meanwhile(&budget.name));
    }
    api.audit_pending.notify_one();
    let nothing = AuditedRead::nothing().extension();
    Ok((nothing, Json(StoredBudget { name: budget.name })))
}

/// Deletes a budget of the API.
#[utoipa::path(delete, operation_id = "deleteBudget", path = "/v1/budgets/{name}", tag = "budgets", params(("name" = String, Path, description = "Name of the budget")), responses(
    (status = 200, description = "The name of the budget", body = StoredBudget), (status = 401, response = responses::Unauthorized), (status = 403, response = responses::Forbidden), (status = 404, response = responses::NotFound), (status = 409, response = responses::Conflict), (status = 503, response = responses::Unavailable),
))]
pub(super) async fn delete(
    caller: Caller,
    State(api): State<Api>,
    Path(name): Path<String>,
) -> Result<(Extension<AuditedRead>, Json<StoredBudget>), Problem> {
    let stored = stored_budgets(&api).await?;
    let missing = || Problem::not_found(format!("no budget {name:?}"));
    let known = find_budget(&api, &stored, &name).ok_or_else(missing)?;
    let clusters = clusters(&api);
    let may_see = |budget: &Budget| {
        let people = &api.evaluation.borrow().people;
        budget.is_visible_to(&caller, people, &clusters)
            || budget.may_be_changed_by(&caller, &clusters)
    };
    // A hidden budget does not exist for the caller.
    if !known.may(&caller, may_see) {
        return Err(missing());
    }
    if !known.may(&caller, |budget| {
        budget.may_be_changed_by(&caller, &clusters)
    }) {
        return Err(Problem::forbidden(
            "only administrators, and coordinators of all of its accounts on all of its clusters, may delete a budget",
        ));
    }
    let KnownBudget::Api(content, _) = known else {
        return Err(in_file(&name));
    };
    let audit = audit_row(&api, &caller, BudgetAct::Deleted, (&name, ""), Utc::now());
    let deleted = api.store.delete_budget((&name, content), &audit).await;
    if !deleted? {
        let left = stored_budgets(&api).await?;
        return Err(match find_budget(&api, &left, &name) {
            Some(_) => changed_meanwhile(&name),
            None => missing(),
        });
    }
    api.audit_pending.notify_one();
    let nothing = AuditedRead::nothing().extension();
    Ok((nothing, Json(StoredBudget { name })))
}

/// Names and contents of the budgets of the API.
async fn stored_budgets(api: &Api) -> Result<Vec<(String, String)>, Problem> {
    let stored = api.store.api_budgets().await;
    Ok(stored?)
}

/// Where a budget is defined.
enum KnownBudget<'a> {
    File(Budget),
    /// The content, and the budget unless it has faults.
    Api(&'a str, Option<Budget>),
}

impl KnownBudget<'_> {
    /// True if the caller may do something with the budget. The accounts of a faulty one are unknown, so it is for administrators.
    fn may(&self, caller: &Caller, may: impl Fn(&Budget) -> bool) -> bool {
        match self {
            Self::File(budget) | Self::Api(_, Some(budget)) => may(budget),
            Self::Api(_, None) => caller.may_write(),
        }
    }
}

/// The budget of this name. One of a file supersedes one of the API.
fn find_budget<'a>(
    api: &Api,
    stored: &'a [(String, String)],
    name: &str,
) -> Option<KnownBudget<'a>> {
    let of_files = api.file_budgets.as_ref();
    let of_file = of_files.and_then(|budgets| {
        let budgets = budgets.borrow();
        budgets.iter().find(|budget| budget.name == name).cloned()
    });
    if let Some(budget) = of_file {
        return Some(KnownBudget::File(budget));
    }
    let (_, content) = stored.iter().find(|(known, _)| known == name)?;
    let budget = files::parse(content).ok().and_then(|mut found| found.pop());
    Some(KnownBudget::Api(content, budget))
}

/// By the last evaluation, also before the first one.
fn clusters(api: &Api) -> Clusters {
    let evaluation = api.evaluation.borrow();
    let known = evaluation.clusters.all.iter().map(String::as_str);
    Clusters::new(&api.cluster, known)
}

fn conflict(detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::CONFLICT, detail)
}

fn in_file(name: &str) -> Problem {
    conflict(format!("budget {name:?} is defined in a file"))
}

fn changed_meanwhile(name: &str) -> Problem {
    conflict(format!(
        "budget {name:?} was changed by another request; look at it and try again"
    ))
}

/// A budget as in a file.
fn content(body: &serde_json::Value) -> Result<String, Problem> {
    let table = toml::Value::try_from(body)
        .ok()
        .filter(toml::Value::is_table);
    let table = table
        .ok_or_else(|| Problem::bad_request("the body is not a JSON object, or contains null"))?;
    let file = std::collections::BTreeMap::from([("budget", vec![table])]);
    toml::to_string(&file).map_err(|error| Problem::bad_request(error.to_string()))
}

/// What was done with a budget.
#[derive(Clone, Copy)]
enum BudgetAct {
    Set,
    Deleted,
}

impl BudgetAct {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Set => "set",
            Self::Deleted => "deleted",
        }
    }
}

fn audit_row(
    api: &Api,
    caller: &Caller,
    act: BudgetAct,
    (name, content): (&str, &str),
    now: DateTime<Utc>,
) -> AuditRow {
    let act = Act::Budget(BudgetChanged {
        what: act.as_str().to_owned(),
        budget: name.to_owned(),
        content: content.to_owned(),
        made_by: caller.name.clone(),
    });
    AUDIT_ENTRIES.entry(&api.cluster, now, act)
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
