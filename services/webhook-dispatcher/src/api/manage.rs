//! Endpoints are made, changed and removed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, TimeDelta, Utc};
use mesh_events::proto::mesh::audit::v1::audit_entry::Act as Entry;
use mesh_events::proto::mesh::audit::v1::{AuditEntry, WebhookChanged};
use mesh_events::timestamp;
use mesh_runtime::api::Caller;
use prost::Message as _;
use serde_json::{Map, Value, json};

use super::{ApiError, Page, Rotation, Tested, Trial, Webhook, WebhooksApi, WithSecret, trial};
use crate::adapters::endpoints::{Act, Activity, Source, Stored};
use crate::adapters::redeliveries::{Again, Job};
use crate::adapters::store::{Attempt, Delivery};
use crate::announce::{ACT, SERVICE};
use crate::config::Endpoint;
use crate::fleet::Fleet;
use crate::lane::Shared;
use crate::registry::{Definition, Registry, Retired};
use crate::signature::Signer;

/// The old secret signs no longer than this.
const LONGEST_OVERLAP: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// So many secrets from before sign.
const MOST_RETIRED: usize = 10;

/// The Webhooks API of a dispatcher.
pub struct Webhooks {
    /// Bus, database and HTTP clients.
    pub shared: Arc<Shared>,
    /// What each endpoint is.
    pub registry: Arc<Registry>,
    /// Told of changes.
    pub fleet: Arc<Fleet>,
    /// Where endpoints of the operator are written.
    pub config_file: String,
}

impl WebhooksApi for Webhooks {
    async fn list(&self, caller: &Caller) -> Result<Vec<Webhook>, ApiError> {
        let mut seen = Vec::new();
        for stored in self.shared.store.endpoints().await? {
            if may_see(caller, &stored) {
                seen.push(self.shown(stored).await?);
            }
        }
        Ok(seen)
    }

    async fn get(&self, caller: &Caller, name: &str) -> Result<Webhook, ApiError> {
        self.shown(self.visible(caller, name).await?).await
    }

    async fn create(&self, caller: &Caller, mut spec: Value) -> Result<WithSecret, ApiError> {
        let Some(vault) = self.registry.vault() else {
            return Err(ApiError::Unprepared(format!(
                "there is no key to encrypt secrets with: set webhook-dispatcher.secrets_key_file in {} (`openssl rand -base64 32` makes one) for every dispatcher",
                self.config_file
            )));
        };
        let owner = owner(caller, &mut spec)?;
        self.within_quota(caller, &owner).await?;
        own_events_only(caller, &owner, &mut spec)?;
        let (definition, endpoint) = self.complete(spec)?;
        let now = Utc::now();
        let id = uuid::Uuid::new_v4().to_string();
        let stored = Stored {
            name: endpoint.name.clone(),
            source: Source::Api,
            owner,
            spec: endpoint.public,
            secrets: Some(vault.seal(&id, &text(&definition))),
            id,
            activity: Activity::Active,
            reason: String::new(),
            since: now,
            revision: 1,
            created_at: now,
            updated_at: now,
        };
        let act = self.act(caller, &stored, "created", Vec::new(), "", now);
        if !self.shared.store.create(&stored, act).await? {
            return Err(ApiError::Conflict(format!(
                "the name {:?} is taken, maybe by somebody whose webhooks you may not see, or by one that is just being removed",
                stored.name
            )));
        }
        self.applied(&stored).await;
        let secret = endpoint.signer.is_some().then(|| secret(&definition.spec));
        let webhook = self.shown(stored).await?;
        Ok(WithSecret {
            webhook,
            secret: secret.flatten(),
        })
    }

    async fn edit(&self, caller: &Caller, name: &str, patch: Value) -> Result<Webhook, ApiError> {
        let mut stored = self.editable(caller, name).await?;
        let Value::Object(patch) = patch else {
            return Err(ApiError::invalid("", "a JSON object with what changes"));
        };
        let fixed = |key: &'static str, problem: &str| Err(ApiError::invalid(key, problem));
        if patch.contains_key("name") {
            return fixed("name", "cannot be changed; make another webhook");
        }
        if patch.contains_key("owner") {
            return fixed("owner", "cannot be changed; make another webhook");
        }
        if patch.contains_key("secret") {
            return fixed(
                "secret",
                "is changed by rotation: POST /v1/webhooks/{name}/rotate",
            );
        }
        let keys: Vec<String> = patch.keys().cloned().collect();
        let mut definition = self.registry.definition(&stored)?;
        merge(&mut definition.spec, Value::Object(patch));
        own_events_only(caller, &stored.owner, &mut definition.spec)?;
        let (spec, endpoint) = self.complete(definition.spec)?;
        definition.spec = spec.spec;
        let now = Utc::now();
        stored.spec = endpoint.public;
        stored.updated_at = now;
        let act = self.act(caller, &stored, "changed", keys, "", now);
        self.store(stored, Some(&definition), act).await
    }

    async fn remove(&self, caller: &Caller, name: &str) -> Result<(), ApiError> {
        let stored = self.editable(caller, name).await?;
        let now = Utc::now();
        let act = self.act(caller, &stored, "removed", Vec::new(), "", now);
        self.shared
            .store
            .set_activity(name, Activity::Removed, "", now, Some(act))
            .await?;
        self.fleet.wake();
        self.shared.outcomes.notify_one();
        Ok(())
    }

    async fn pause(&self, caller: &Caller, name: &str, reason: &str) -> Result<Webhook, ApiError> {
        if reason.chars().count() > 500 || reason.chars().any(char::is_control) {
            let problem = "at most 500 characters, none of them a control character";
            return Err(ApiError::invalid("reason", problem));
        }
        let reason = match reason {
            "" => format!("paused by {}", caller.name),
            reason => reason.to_owned(),
        };
        self.set_activity(caller, name, Activity::Paused, "paused", &reason)
            .await
    }

    async fn resume(&self, caller: &Caller, name: &str) -> Result<Webhook, ApiError> {
        self.set_activity(caller, name, Activity::Active, "resumed", "")
            .await
    }

    async fn rotate(
        &self,
        caller: &Caller,
        name: &str,
        rotation: Rotation,
    ) -> Result<WithSecret, ApiError> {
        let mut stored = self.editable(caller, name).await?;
        let overlap = rotation
            .overlap
            .unwrap_or(self.registry.config().secret_overlap);
        if overlap > LONGEST_OVERLAP {
            return Err(ApiError::invalid("overlap", "at most 7d"));
        }
        let mut definition = self.registry.definition(&stored)?;
        let Some(old) = secret(&definition.spec) else {
            return Err(ApiError::Conflict(format!(
                "{name:?} is not signed: it has no secret to rotate"
            )));
        };
        let new = rotation.secret.unwrap_or_else(make_secret);
        if let Err(error) = Signer::new(&new) {
            return Err(ApiError::invalid("secret", error.to_string()));
        }
        let now = Utc::now();
        definition.spec["secret"] = new.clone().into();
        definition.retired.retain(|retired| retired.until > now);
        definition.retired.insert(
            0,
            Retired {
                secret: old,
                until: now + TimeDelta::from_std(overlap).unwrap_or_default(),
            },
        );
        definition.retired.truncate(MOST_RETIRED);
        stored.updated_at = now;
        let act = self.act(caller, &stored, "rotated", Vec::new(), "", now);
        let webhook = self.store(stored, Some(&definition), act).await?;
        Ok(WithSecret {
            webhook,
            secret: Some(new),
        })
    }

    async fn test(&self, caller: &Caller, name: &str, trial: Trial) -> Result<Tested, ApiError> {
        let stored = self.changeable(caller, name).await?;
        let endpoint = self.registry.made_of(&stored)?;
        trial::run(&self.shared, caller, &endpoint, trial).await
    }

    async fn deliveries(
        &self,
        caller: &Caller,
        name: &str,
        page: Page,
    ) -> Result<(String, Vec<Delivery>), ApiError> {
        self.list_deliveries(caller, name, page).await
    }

    async fn delivery(
        &self,
        caller: &Caller,
        name: &str,
        event_id: &str,
    ) -> Result<(String, Delivery, Vec<Attempt>), ApiError> {
        self.show_delivery(caller, name, event_id).await
    }

    async fn redeliver(&self, caller: &Caller, name: &str, again: Again) -> Result<Job, ApiError> {
        self.start_redelivery(caller, name, again).await
    }

    async fn redeliveries(
        &self,
        caller: &Caller,
        name: &str,
    ) -> Result<(String, Vec<Job>), ApiError> {
        self.list_redeliveries(caller, name).await
    }
}

impl Webhooks {
    /// An endpoint that the caller may see.
    pub(super) async fn visible(&self, caller: &Caller, name: &str) -> Result<Stored, ApiError> {
        let stored = self.shared.store.endpoint(name).await?;
        stored
            .filter(|stored| may_see(caller, stored))
            .ok_or_else(|| ApiError::NotFound(name.to_owned()))
    }

    /// An endpoint that the caller may act on.
    pub(super) async fn changeable(&self, caller: &Caller, name: &str) -> Result<Stored, ApiError> {
        let stored = self.visible(caller, name).await?;
        if stored.activity == Activity::Removed {
            return Err(ApiError::Conflict(format!("{name:?} is being removed")));
        }
        if caller.may_write() || caller.is(&stored.owner) {
            Ok(stored)
        } else {
            Err(ApiError::Forbidden(
                "auditors change and test nothing; ask the owner or an administrator".to_owned(),
            ))
        }
    }

    /// An endpoint that the caller may act on, and that is not written in `mesh.toml`.
    async fn editable(&self, caller: &Caller, name: &str) -> Result<Stored, ApiError> {
        let stored = self.changeable(caller, name).await?;
        match stored.source {
            Source::Api => Ok(stored),
            Source::File => Err(ApiError::Conflict(format!(
                "webhook {name:?} is written in {}: change [[webhook-dispatcher.endpoints]] there and restart",
                self.config_file
            ))),
        }
    }

    async fn set_activity(
        &self,
        caller: &Caller,
        name: &str,
        activity: Activity,
        what: &str,
        reason: &str,
    ) -> Result<Webhook, ApiError> {
        let stored = self.changeable(caller, name).await?;
        let now = Utc::now();
        let act = self.act(caller, &stored, what, Vec::new(), reason, now);
        self.shared
            .store
            .set_activity(name, activity, reason, now, Some(act))
            .await?;
        let stored = self.visible(caller, name).await?;
        self.applied(&stored).await;
        self.shown(stored).await
    }

    /// Makes a secret if one is needed, and checks.
    fn complete(&self, mut spec: Value) -> Result<(Definition, Endpoint), ApiError> {
        use crate::domain::format::{Format, Signed};
        let format: Option<Format> = spec.get("format").map_or_else(
            || Some(Format::default()),
            |format| serde_json::from_value(format.clone()).ok(),
        );
        let signs = format.is_some_and(|format| format.signed() == Signed::Always);
        if signs && spec.is_object() && spec.get("secret").is_none_or(Value::is_null) {
            spec["secret"] = make_secret().into();
        }
        let definition = Definition {
            spec,
            retired: Vec::new(),
        };
        let endpoint = self
            .registry
            .check(&definition)
            .map_err(ApiError::Invalid)?;
        Ok((definition, endpoint))
    }

    async fn within_quota(&self, caller: &Caller, owner: &str) -> Result<(), ApiError> {
        let most = self.registry.config().most_per_user as usize;
        if caller.may_write() {
            return Ok(());
        }
        let all = self.shared.store.endpoints().await?;
        if all.iter().filter(|stored| stored.owner == owner).count() < most {
            return Ok(());
        }
        Err(ApiError::Conflict(format!(
            "{owner} has {most} webhooks, and more are not allowed (webhook-dispatcher.most_per_user); remove one, or ask an administrator"
        )))
    }

    /// Stores a changed endpoint.
    async fn store(
        &self,
        mut stored: Stored,
        definition: Option<&Definition>,
        act: Act,
    ) -> Result<Webhook, ApiError> {
        if let (Some(definition), Some(vault)) = (definition, self.registry.vault()) {
            stored.secrets = Some(vault.seal(&stored.id, &text(definition)));
        }
        if !self.shared.store.change(&stored, Some(act)).await? {
            return Err(ApiError::Conflict(format!(
                "webhook {:?} was changed by somebody else at the same time; look at it and try again",
                stored.name
            )));
        }
        stored.revision += 1;
        self.applied(&stored).await;
        self.shown(stored).await
    }

    async fn applied(&self, stored: &Stored) {
        self.shared.outcomes.notify_one();
        self.fleet.applied(&stored.name, stored.revision).await;
    }

    async fn shown(&self, stored: Stored) -> Result<Webhook, ApiError> {
        let counts = self.shared.store.counts(&stored.name).await?;
        let spec = match stored.spec {
            Value::Object(spec) => spec,
            _ => Map::new(),
        };
        Ok(Webhook {
            name: stored.name,
            owner: stored.owner,
            source: stored.source.as_str(),
            state: stored.activity.as_str(),
            reason: stored.reason,
            since: stored.since,
            created_at: stored.created_at,
            updated_at: stored.updated_at,
            spec,
            counts,
        })
    }

    /// An entry for the audit.
    pub(super) fn act(
        &self,
        caller: &Caller,
        stored: &Stored,
        what: &str,
        keys: Vec<String>,
        reason: &str,
        now: DateTime<Utc>,
    ) -> Act {
        let id = uuid::Uuid::new_v4().to_string();
        let entry = AuditEntry {
            id: id.clone(),
            cluster: self.shared.cluster.clone(),
            kind: ACT.to_owned(),
            at: Some(timestamp(now)),
            service: SERVICE.to_owned(),
            act: Some(Entry::Webhook(WebhookChanged {
                endpoint: stored.name.clone(),
                what: what.to_owned(),
                keys: keys
                    .into_iter()
                    .collect::<BTreeSet<_>>()
                    .into_iter()
                    .collect(),
                owner: stored.owner.clone(),
                made_by: caller.name.clone(),
                role: caller.role_name().to_owned(),
                authentication: caller.means.as_str().to_owned(),
                reason: reason.to_owned(),
            })),
        };
        Act {
            id,
            body: entry.encode_to_vec(),
        }
    }
}

fn may_see(caller: &Caller, stored: &Stored) -> bool {
    caller.sees_everything() || caller.is(&stored.owner)
}

/// Whose endpoint it is to be; taken out of what was given.
fn owner(caller: &Caller, spec: &mut Value) -> Result<String, ApiError> {
    let Some(fields) = spec.as_object_mut() else {
        return Err(ApiError::invalid("", "a JSON object with name, url, …"));
    };
    let wanted = match fields.remove("owner") {
        None | Some(Value::Null) => None,
        Some(Value::String(owner)) if !owner.is_empty() && owner.len() <= 256 => Some(owner),
        Some(_) => return Err(ApiError::invalid("owner", "the name of a Unix user")),
    };
    if !caller.may_write() && caller.sees_everything() {
        let refused = "auditors change nothing; ask an administrator";
        return Err(ApiError::Forbidden(refused.to_owned()));
    }
    match wanted.or_else(|| caller.users.first().cloned()) {
        Some(owner) if caller.may_write() || caller.is(&owner) => Ok(owner),
        Some(owner) => Err(ApiError::Forbidden(format!(
            "owner: you are not {owner}; only administrators (mesh.api.admins) make webhooks for others"
        ))),
        None if caller.may_write() => Ok(String::new()),
        None => Err(ApiError::Forbidden(
            "you are no Unix user here, so no events are yours; ask an administrator".to_owned(),
        )),
    }
}

/// A user's endpoint gets the user's own events, whatever was asked for; only an administrator makes or leaves it wider.
fn own_events_only(caller: &Caller, owner: &str, spec: &mut Value) -> Result<(), ApiError> {
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

fn secret(spec: &Value) -> Option<String> {
    spec["secret"].as_str().map(str::to_owned)
}

fn make_secret() -> String {
    format!("whsec_{}", STANDARD.encode(rand::random::<[u8; 32]>()))
}

fn text(definition: &Definition) -> Vec<u8> {
    json!(definition).to_string().into_bytes()
}

/// JSON merge patch, RFC 7396.
fn merge(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            if let Some(fields) = target.as_object_mut() {
                fields.remove(&key);
            }
        } else {
            merge(&mut target[key.as_str()], value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_are_merged_as_the_rfc_says() {
        // Cases of RFC 7396, appendix A.
        for (original, patch, expected) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (
                json!({"a": "b"}),
                json!({"b": "c"}),
                json!({"a": "b", "b": "c"}),
            ),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (
                json!({"a": "b", "b": "c"}),
                json!({"a": null}),
                json!({"b": "c"}),
            ),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
            (
                json!({"a": {"b": "c"}}),
                json!({"a": {"b": "d", "c": null}}),
                json!({"a": {"b": "d"}}),
            ),
            (
                json!({"e": null}),
                json!({"a": 1}),
                json!({"e": null, "a": 1}),
            ),
            (
                json!({}),
                json!({"a": {"bb": {"ccc": null}}}),
                json!({"a": {"bb": {}}}),
            ),
        ] {
            let mut target = original.clone();
            merge(&mut target, patch);
            assert_eq!(target, expected, "{original}");
        }
    }
}
