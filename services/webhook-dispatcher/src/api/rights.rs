//! Permissions: who may see, create and change which endpoints.

use mesh_events::webhook_name;
use mesh_runtime::api::Caller;
use serde_json::{Value, json};

use super::{ApiError, Webhooks};
use crate::store::endpoints::{Activity, EndpointRow, Source};

impl Webhooks {
    /// An endpoint that the caller may see. `alice/ci` is a full name. `ci` is the caller's own, or else one without
    /// owner; `/ci` is always one without owner. A plain name never refers to another user's endpoint.
    pub(super) async fn visible(
        &self,
        caller: &Caller,
        name: &str,
    ) -> Result<EndpointRow, ApiError> {
        let candidates = webhook_name::candidates(name, &caller.users);
        let mut found = self.shared.store.named(candidates.clone()).await?;
        let mut meant = candidates
            .iter()
            .filter_map(|full| found.remove(full))
            .filter(|stored| may_see(caller, stored));
        let absent = || ApiError::NotFound(name.to_owned());
        let first = meant.next().ok_or_else(absent)?;
        match meant.next() {
            Some(second) if !second.owner.is_empty() => Err(ApiError::Conflict(format!(
                "{name:?} may be {:?} or {:?}: name it in full",
                first.name, second.name
            ))),
            Some(_) | None => Ok(first),
        }
    }

    /// An endpoint that the caller may act on.
    pub(super) async fn changeable(
        &self,
        caller: &Caller,
        name: &str,
    ) -> Result<EndpointRow, ApiError> {
        let stored = self.visible(caller, name).await?;
        if stored.activity == Activity::Removed {
            return Err(ApiError::Conflict(format!("{name:?} is being removed")));
        }
        if caller.may_write() || caller.is(&stored.owner) {
            Ok(stored)
        } else {
            Err(ApiError::Forbidden(
                "auditors may not change or test webhooks; ask the owner or an administrator"
                    .to_owned(),
            ))
        }
    }

    /// An endpoint that the caller may act on and that is not defined in `mesh.toml`.
    pub(super) async fn editable(
        &self,
        caller: &Caller,
        name: &str,
    ) -> Result<EndpointRow, ApiError> {
        let stored = self.changeable(caller, name).await?;
        match stored.source {
            Source::Api => Ok(stored),
            Source::File => Err(ApiError::Conflict(format!(
                "webhook {name:?} is defined in {}: change [[webhook-dispatcher.endpoints]] there",
                self.config_file
            ))),
        }
    }

    /// Checks that the owner may have one more endpoint.
    pub(super) async fn within_quota(&self, caller: &Caller, owner: &str) -> Result<(), ApiError> {
        let max = self.registry.config.max_endpoints_per_user as usize;
        if caller.may_write() {
            return Ok(());
        }
        let all = self.shared.store.endpoints().await?;
        if all.iter().filter(|stored| stored.owner == owner).count() < max {
            return Ok(());
        }
        Err(ApiError::Conflict(format!(
            "{owner} has {max} webhooks, and more are not allowed (webhook-dispatcher.max_endpoints_per_user); remove one, or ask an administrator"
        )))
    }
}

/// True if the endpoint is visible to the caller.
pub(super) fn may_see(caller: &Caller, stored: &EndpointRow) -> bool {
    caller.sees_everything() || caller.is(&stored.owner)
}

/// Removes the owner from the request and checks it.
pub(super) fn owner(caller: &Caller, spec: &mut Value) -> Result<String, ApiError> {
    let Some(fields) = spec.as_object_mut() else {
        return Err(ApiError::invalid("", "a JSON object with name, url, …"));
    };
    let wanted = match fields.remove("owner") {
        None | Some(Value::Null) => None,
        Some(Value::String(owner)) if !owner.is_empty() && owner.len() <= 256 => Some(owner),
        Some(_) => return Err(ApiError::invalid("owner", "the name of a Unix user")),
    };
    if !caller.may_write() && caller.sees_everything() {
        let refused = "auditors may not create webhooks; ask an administrator";
        return Err(ApiError::Forbidden(refused.to_owned()));
    }
    match wanted.or_else(|| caller.users.first().cloned()) {
        Some(owner) if caller.may_write() || caller.is(&owner) => Ok(owner),
        Some(owner) => Err(ApiError::Forbidden(format!(
            "owner: you are not {owner}; only administrators (mesh.api.admins) create webhooks for others"
        ))),
        None if caller.may_write() => Ok(String::new()),
        None => Err(ApiError::Forbidden(
            "you have no Unix user here and so no events; ask an administrator".to_owned(),
        )),
    }
}

/// Restricts a user's endpoint to the user's own events. Only administrators may request events of other users.
pub(super) fn own_events_only(
    caller: &Caller,
    owner: &str,
    spec: &mut Value,
) -> Result<(), ApiError> {
    if caller.may_write() {
        return Ok(());
    }
    let asked = spec.get("users").and_then(Value::as_array);
    let others = asked
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .any(|user| !caller.is(user));
    if others {
        return Err(ApiError::Forbidden(
            "users: you get your own events only; leave it out, or ask an administrator".to_owned(),
        ));
    }
    if asked.is_none_or(Vec::is_empty) {
        spec["users"] = json!([owner]);
    }
    Ok(())
}
