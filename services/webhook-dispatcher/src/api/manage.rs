//! Creates, changes and removes endpoints.

use std::time::Duration;

use audit_outbox::AuditRow;
use chrono::{DateTime, TimeDelta, Utc};
use mesh_events::proto::mesh::audit::v1::WebhookChanged;
use mesh_events::webhook_name;
use mesh_runtime::api::Caller;
use serde_json::{Value, json};
use standard_webhooks::{Signer, encode_secret};

use super::patch::merge;
use super::rights::{may_see, own_events_only, owner};
use super::{
    ApiError, Preview, PreviewRequest, Rotation, TestRequest, TestResult, Webhook, WebhookList,
    WebhookWithSecret, Webhooks, webhook_test,
};
use crate::clock;
use crate::config::{self, Endpoint};
use crate::delivery::outbox_publisher;
use crate::endpoint::registry::{Definition, RetiredSecret};
use crate::store::endpoints::{Activity, EndpointRow, Source};

/// Maximum time that a replaced secret still signs.
const LONGEST_OVERLAP: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Maximum replaced secrets that still sign.
const MAX_RETIRED: usize = 10;

impl Webhooks {
    /// Lists the endpoints that the caller may see.
    pub(super) async fn list(&self, caller: &Caller) -> Result<WebhookList, ApiError> {
        let mut all = self.shared.store.endpoints().await?;
        all.retain(|stored| may_see(caller, stored));
        let webhooks = self.all_shown(all).await?;
        Ok(WebhookList { webhooks })
    }

    /// Reads an endpoint.
    pub(super) async fn get(&self, caller: &Caller, name: &str) -> Result<Webhook, ApiError> {
        self.shown(self.visible(caller, name).await?).await
    }

    /// Creates an endpoint.
    pub(super) async fn create(
        &self,
        caller: &Caller,
        mut spec: Value,
    ) -> Result<WebhookWithSecret, ApiError> {
        let Some(vault) = &self.registry.vault else {
            return Err(ApiError::Unprepared(format!(
                "no encryption key for secrets: set webhook-dispatcher.secrets_key_file in {} (create a key with `openssl rand -base64 32`) for every dispatcher",
                self.config_file
            )));
        };
        config::refuse_old_keys(&spec).map_err(ApiError::Invalid)?;
        let owner = owner(caller, &mut spec)?;
        let turn = self.making.lock().await;
        self.within_quota(caller, &owner).await?;
        own_events_only(caller, &owner, &mut spec)?;
        let (definition, endpoint) = self.complete(spec)?;
        let now = clock::now();
        let id = uuid::Uuid::new_v4().to_string();
        let stored = EndpointRow {
            name: webhook_name::full(&owner, &endpoint.name),
            source: Source::Api,
            owner,
            spec: endpoint.spec(),
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
                "webhook {:?} exists already or is being removed",
                stored.name
            )));
        }
        drop(turn);
        self.applied(&stored).await;
        let secret = endpoint.signer.is_some().then(|| secret(&definition.spec));
        let webhook = self.shown(stored).await?;
        Ok(WebhookWithSecret {
            webhook,
            secret: secret.flatten(),
        })
    }

    /// Changes an endpoint by a JSON merge patch.
    pub(super) async fn edit(
        &self,
        caller: &Caller,
        name: &str,
        patch: Value,
    ) -> Result<Webhook, ApiError> {
        let mut stored = self.editable(caller, name).await?;
        config::refuse_old_keys(&patch).map_err(ApiError::Invalid)?;
        let Value::Object(patch) = patch else {
            return Err(ApiError::invalid(
                "",
                "a JSON object with the changed keys is required",
            ));
        };
        let another = "cannot be changed; make another webhook";
        let rotation = "is changed by rotation: POST /v1/webhooks/{name}/rotate";
        let fixed = [("name", another), ("owner", another), ("secret", rotation)];
        if let Some((key, problem)) = fixed.iter().find(|(key, _)| patch.contains_key(*key)) {
            return Err(ApiError::invalid(key, *problem));
        }
        let keys: Vec<String> = patch.keys().cloned().collect();
        let mut definition = self.registry.definition(&stored)?;
        merge(&mut definition.spec, Value::Object(patch));
        own_events_only(caller, &stored.owner, &mut definition.spec)?;
        let (spec, endpoint) = self.complete(definition.spec)?;
        definition.spec = spec.spec;
        let now = clock::now();
        stored.spec = endpoint.spec();
        stored.updated_at = now;
        let act = self.act(caller, &stored, "changed", keys, "", now);
        self.store(stored, Some(&definition), act).await
    }

    /// Removes an endpoint.
    pub(super) async fn remove(&self, caller: &Caller, name: &str) -> Result<(), ApiError> {
        let stored = self.editable(caller, name).await?;
        let now = clock::now();
        let act = self.act(caller, &stored, "removed", Vec::new(), "", now);
        self.shared
            .store
            .set_activity(&stored.name, Activity::Removed, "", now, Some(act), &[])
            .await?;
        self.worker_pool.wake();
        self.shared.outcomes.notify_one();
        Ok(())
    }

    /// Pauses an endpoint.
    pub(super) async fn pause(
        &self,
        caller: &Caller,
        name: &str,
        reason: &str,
    ) -> Result<Webhook, ApiError> {
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

    /// Resumes an endpoint.
    pub(super) async fn resume(&self, caller: &Caller, name: &str) -> Result<Webhook, ApiError> {
        let stored = self.changeable(caller, name).await?;
        if stored.activity == Activity::Active {
            return self.try_at_once(caller, stored).await;
        }
        self.set_activity(caller, name, Activity::Active, "resumed", "")
            .await
    }

    /// Replaces the signing secret.
    pub(super) async fn rotate(
        &self,
        caller: &Caller,
        name: &str,
        rotation: Rotation,
    ) -> Result<WebhookWithSecret, ApiError> {
        let mut stored = self.editable(caller, name).await?;
        let overlap = rotation
            .overlap
            .unwrap_or(self.registry.config.secret_overlap);
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
        Signer::new(&new).map_err(ApiError::of("secret"))?;
        let now = clock::now();
        definition.spec["secret"] = new.clone().into();
        definition.retired.retain(|retired| retired.until > now);
        definition.retired.insert(
            0,
            RetiredSecret {
                secret: old,
                until: now + TimeDelta::from_std(overlap).unwrap_or_default(),
            },
        );
        definition.retired.truncate(MAX_RETIRED);
        stored.updated_at = now;
        let act = self.act(caller, &stored, "rotated", Vec::new(), "", now);
        let webhook = self.store(stored, Some(&definition), act).await?;
        Ok(WebhookWithSecret {
            webhook,
            secret: Some(new),
        })
    }

    /// Sends a sample, or a given event.
    pub(super) async fn test(
        &self,
        caller: &Caller,
        name: &str,
        test_request: TestRequest,
    ) -> Result<TestResult, ApiError> {
        let stored = self.changeable(caller, name).await?;
        let endpoint = self.registry.made_of(&stored)?;
        let sends = !test_request.dry_run;
        let turn = if sends {
            Some(self.turn(&endpoint).await?)
        } else {
            None
        };
        let tested = webhook_test::run(&self.shared, caller, &endpoint, test_request).await?;
        drop(turn);
        if sends {
            let act = self.act(caller, &stored, "tested", Vec::new(), "", clock::now());
            self.shared.store.note(act).await?;
            self.shared.outcomes.notify_one();
        }
        Ok(tested)
    }

    /// Renders a delivery without sending it.
    pub(super) async fn preview(
        &self,
        caller: &Caller,
        draft: PreviewRequest,
    ) -> Result<Preview, ApiError> {
        let endpoint = match (&draft.webhook, &draft.format) {
            (Some(name), None) => {
                let stored = self.changeable(caller, name).await?;
                Some(self.registry.made_of(&stored)?)
            }
            (None, Some(_)) => None,
            _ => {
                let problem = "name a webhook, or give a format; not both";
                return Err(ApiError::invalid("webhook", problem));
            }
        };
        webhook_test::preview(&self.shared, caller, endpoint.as_deref(), draft)
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
        let now = clock::now();
        let act = self.act(caller, &stored, what, Vec::new(), reason, now);
        self.shared
            .store
            .set_activity(&stored.name, activity, reason, now, Some(act), &[])
            .await?;
        let stored = self.visible(caller, &stored.reference()).await?;
        self.applied(&stored).await;
        self.shown(stored).await
    }

    /// Closes the circuit of an endpoint and ends its receiver's pause, by a new revision. Does nothing if neither
    /// applies.
    async fn try_at_once(&self, caller: &Caller, stored: EndpointRow) -> Result<Webhook, ApiError> {
        let shown = self.shown(stored.clone()).await?;
        if shown.circuit.since.is_none() && shown.held.is_none() {
            return Ok(shown);
        }
        let act = self.act(caller, &stored, "resumed", Vec::new(), "", clock::now());
        self.store(stored, None, act).await
    }

    /// Generates a secret if one is required, and validates the definition.
    fn complete(&self, mut spec: Value) -> Result<(Definition, Endpoint), ApiError> {
        use event_message::format::{Format, Signed};
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

    async fn store(
        &self,
        mut stored: EndpointRow,
        definition: Option<&Definition>,
        act: AuditRow,
    ) -> Result<Webhook, ApiError> {
        if let (Some(definition), Some(vault)) = (definition, &self.registry.vault) {
            stored.secrets = Some(vault.seal(&stored.id, &text(definition)));
        }
        if !self.shared.store.change(&stored, Some(act)).await? {
            return Err(ApiError::Conflict(format!(
                "webhook {:?} was changed concurrently; read it again and retry",
                stored.name
            )));
        }
        stored.revision += 1;
        self.applied(&stored).await;
        self.shown(stored).await
    }

    async fn applied(&self, stored: &EndpointRow) {
        self.shared.outcomes.notify_one();
        self.worker_pool
            .applied(&stored.name, stored.revision)
            .await;
    }

    /// An audit entry about an action of the caller.
    pub(super) fn act(
        &self,
        caller: &Caller,
        stored: &EndpointRow,
        what: &str,
        keys: Vec<String>,
        reason: &str,
        now: DateTime<Utc>,
    ) -> AuditRow {
        let changed = WebhookChanged {
            endpoint: stored.name.clone(),
            what: what.to_owned(),
            keys,
            owner: stored.owner.clone(),
            made_by: caller.name.clone(),
            role: caller.role_name().to_owned(),
            authentication: caller.auth_method.as_str().to_owned(),
            reason: reason.to_owned(),
        };
        outbox_publisher::act(&self.shared.cluster, changed, now)
    }
}

fn secret(spec: &Value) -> Option<String> {
    spec["secret"].as_str().map(str::to_owned)
}

fn make_secret() -> String {
    encode_secret(&rand::random::<[u8; 32]>())
}

fn text(definition: &Definition) -> Vec<u8> {
    json!(definition).to_string().into_bytes()
}
