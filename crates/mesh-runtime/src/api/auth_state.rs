//! The data that authentication uses: the configuration, and the current contents of the files and buckets it names.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::coordinators_bucket::Coordinators;
use super::oidc::Oidc;
use super::tls::Certificate;
use super::tokens::Tokens;
use super::{AuthMethod, Caller};
use crate::identity::IdentityMap;
use crate::{BoxError, Health, MeshConfig, ReloadTimer, UserNames};

/// Timeout of a user name lookup: the system's user database may be remote, and hang.
pub(super) const FOR_A_NAME: Duration = Duration::from_secs(5);

pub(crate) struct AuthState {
    pub(super) admins: Vec<String>,
    pub(super) auditors: Vec<String>,
    pub(super) tokens: Tokens,
    pub(super) oidc: Oidc,
    pub(super) names: UserNames,
    pub(super) map: IdentityMap,
    pub(super) certificate: Option<Arc<Certificate>>,
    coordinators: Coordinators,
}

impl AuthState {
    /// Reads the files of tokens, the identity map and the certificate.
    ///
    /// # Errors
    /// If the file of a token, the certificate or its key cannot be used.
    pub(crate) fn new(mesh: &MeshConfig, coordinators: Coordinators) -> Result<Self, BoxError> {
        let api = &mesh.api;
        let tokens = Tokens::new(&api.token_file, &api.tokens)
            .map_err(|reason| format!("mesh.api.token_file, mesh.api.tokens: {reason}"))?;
        let certificate = match api.cert_file.as_os_str().is_empty() {
            true => None,
            false => Some(Arc::new(Certificate::new(
                api.cert_file.clone(),
                api.key_file.clone(),
            )?)),
        };
        Ok(Self {
            admins: api.admins.clone(),
            auditors: api.auditors.clone(),
            tokens,
            oidc: Oidc::new(&api.oidc)?,
            names: UserNames::new(FOR_A_NAME),
            map: IdentityMap::new(mesh.identity_map.clone()),
            certificate,
            coordinators,
        })
    }

    /// Keeps files and keys up to date until shutdown.
    pub(super) fn reload_periodically(
        self: Arc<Self>,
        health: &Health,
        shutdown: CancellationToken,
    ) {
        self.oidc.prefetch();
        let certificate = health.note("api.certificate");
        let identities = health.note("api.identity_map");
        tokio::spawn(async move {
            let mut timer = ReloadTimer::new(shutdown);
            while timer.due().await {
                let state = Arc::clone(&self);
                let (note, of_map) = (certificate.clone(), identities.clone());
                let reloaded = tokio::task::spawn_blocking(move || {
                    state.tokens.reload();
                    match state.map.reload() {
                        Some(problem) => of_map.say(problem),
                        None => of_map.clear(),
                    }
                    if let Some(certificate) = &state.certificate {
                        certificate.reload(&note);
                    }
                });
                if let Err(error) = reloaded.await {
                    tracing::warn!(%error, "reloading tokens, identity map and certificate");
                }
            }
        });
    }

    /// The caller with the accounts that their users coordinate now.
    pub(super) fn with_accounts(&self, mut caller: Caller) -> Caller {
        for (cluster, accounts) in self.coordinators.of(&caller.users) {
            caller.accounts.entry(cluster).or_default().extend(accounts);
        }
        caller
    }

    /// The caller's identity, role and rights, for the caller.
    pub(super) fn describe(&self, caller: &Caller) -> Value {
        let identity = match &caller.auth_method {
            AuthMethod::Oidc { issuer, subject } => Some((issuer.clone(), subject.clone())),
            AuthMethod::Peer { .. } => {
                let person = self.map.get(&caller.name);
                person.map(|person| (person.issuer, person.subject))
            }
            AuthMethod::Token => None,
        };
        let accounts: Vec<Value> = caller
            .accounts
            .iter()
            .flat_map(|(cluster, accounts)| {
                accounts
                    .iter()
                    .map(move |account| json!({ "cluster": cluster, "account": account }))
            })
            .collect();
        json!({
            "name": caller.name,
            "role": caller.role_name(),
            "authentication": caller.auth_method.as_str(),
            "users": caller.users,
            "accounts": accounts,
            "identity": identity.map(|(issuer, subject)| json!({ "issuer": issuer, "subject": subject })),
            "sees_everything": caller.sees_everything(),
            "may_write": caller.may_write(),
        })
    }
}
