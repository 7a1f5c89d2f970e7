//! Bearer tokens of OIDC issuers: JWTs (RFC 7519), verified as RFC 8725 requires.
//!
//! Nothing in a token is trusted before its signature is verified. A token can only cause requests to configured issuers. Opaque tokens are
//! not supported: there is no introspection.

mod config;
mod issuer;
mod keys;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Validation, dangerous, decode};
use serde::Deserialize;
use serde_json::{Map, Value};

use self::issuer::{Issuer, KeyError};
use self::keys::ALGORITHMS;
use super::{AccountsByCluster, AuthMethod, Caller, Role};
use crate::BoxError;
use crate::identity::IdentityMap;

pub use self::config::{OidcConfig, UserClaim};

/// Longer tokens are refused.
const MAX_TOKEN_BYTES: usize = 16 * 1024;
/// `typ` of access tokens (RFC 9068) and of older ones. Others, such as `logout+jwt`, have another purpose.
const TOKEN_TYPES: [&str; 4] = ["JWT", "at+jwt", "application/jwt", "application/at+jwt"];

pub(crate) struct Oidc(Vec<Arc<Issuer>>);

/// Why a token is refused. The caller sees the text: it names the fault and does not reveal what would be valid.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The token is not valid.
    Invalid(&'static str),
    /// The issuer's keys are not known, and it does not answer.
    Unavailable,
}

use Refusal::Invalid;

#[derive(Deserialize)]
struct Header {
    alg: String,
    typ: Option<String>,
    kid: Option<String>,
    crit: Option<Value>,
}

#[derive(Deserialize)]
struct UnverifiedClaims {
    iss: String,
}

impl Oidc {
    /// Creates the configured issuers.
    ///
    /// # Errors
    /// If no HTTP client can be created.
    pub(super) fn new(configured: &[OidcConfig]) -> Result<Self, BoxError> {
        if configured.is_empty() {
            return Ok(Self(Vec::new()));
        }
        keys::install_ring();
        crate::install_crypto_provider();
        let http = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(Duration::from_secs(3))
            .build()?;
        let issuer = |config: &OidcConfig| Arc::new(Issuer::new(config.clone(), http.clone()));
        Ok(Self(configured.iter().map(issuer).collect()))
    }

    /// Fetches every issuer's keys, so that the first caller need not wait.
    pub(super) fn prefetch(&self) {
        for issuer in &self.0 {
            drop(issuer.refresh());
        }
    }

    /// True if a token looks like a JWT of a configured issuer.
    pub(super) fn looks_like(&self, token: &str) -> bool {
        !self.0.is_empty() && token.split('.').count() == 3
    }

    /// Verifies a token and identifies its caller.
    pub(super) async fn caller(&self, token: &str, map: &IdentityMap) -> Result<Caller, Refusal> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(Invalid("it is too long"));
        }
        let header: Header = token
            .split('.')
            .next()
            .and_then(|text| BASE64_URL_SAFE_NO_PAD.decode(text).ok())
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .ok_or(Invalid("it is not a JWT"))?;
        let (_, algorithm) = ALGORITHMS
            .into_iter()
            .find(|(name, _)| *name == header.alg)
            .ok_or(Invalid(
                "its algorithm is not one of RS256, ES256 and EdDSA",
            ))?;
        let typed = |typ: &str| {
            TOKEN_TYPES
                .iter()
                .any(|known| known.eq_ignore_ascii_case(typ))
        };
        if header.typ.as_deref().is_some_and(|typ| !typed(typ)) {
            return Err(Invalid("its typ is not the one of an access token"));
        }
        // RFC 7515 §4.1.11: unknown critical parameters must be refused.
        if header.crit.is_some() {
            return Err(Invalid("it has unknown critical extensions (crit)"));
        }
        let UnverifiedClaims { iss } = dangerous::insecure_decode_claims(token)
            .map_err(|_| Invalid("it has no issuer (iss)"))?;
        let issuer = self
            .0
            .iter()
            .find(|issuer| issuer.config.issuer == iss)
            .ok_or(Invalid("its issuer is not trusted"))?;
        let key = match issuer.key(header.kid.as_deref(), algorithm).await {
            Ok(key) => key,
            Err(KeyError::Unknown) => {
                return Err(Invalid(
                    "its issuer has no such key; if the keys were just changed, retry in some seconds",
                ));
            }
            Err(KeyError::Unreachable) => return Err(Refusal::Unavailable),
        };
        let config = &issuer.config;
        let mut validation = Validation::new(algorithm);
        validation.leeway = config.clock_skew.as_secs();
        validation.validate_nbf = true;
        validation.set_issuer(&[&config.issuer]);
        validation.set_audience(&config.audience);
        validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        let claims = decode::<Map<String, Value>>(token, &key, &validation)
            .map_err(|error| Invalid(describe_error(error.kind())))?
            .claims;
        let now = jsonwebtoken::get_current_timestamp() + config.clock_skew.as_secs();
        match claims.get("iat").and_then(Value::as_f64) {
            // Precise enough for seconds.
            #[expect(
                clippy::cast_precision_loss,
                reason = "f64 is exact for 285 million years"
            )]
            Some(iat) if iat <= now as f64 => {}
            Some(_) => return Err(Invalid("it was issued in the future (iat)")),
            None => return Err(Invalid("it has no issue time (iat)")),
        }
        // RFC 7800: a token that is bound to a key is no bearer token, and possession of the key is not verified here.
        if claims.contains_key("cnf") {
            return Err(Invalid(
                "it is bound to a key (cnf), which is not supported",
            ));
        }
        identify(config, &claims, map)
    }
}

/// Identifies the caller from verified claims.
fn identify(
    config: &OidcConfig,
    claims: &Map<String, Value>,
    map: &IdentityMap,
) -> Result<Caller, Refusal> {
    let text = |claim: &str| lookup(claims, claim).and_then(Value::as_str);
    let subject = text("sub")
        .filter(|subject| !subject.is_empty())
        .ok_or(Invalid("it has no subject (sub)"))?;
    let issuer = config.issuer.as_str();
    let users = users(config, claims, subject, map);
    let groups = string_values(lookup(claims, &config.group_claim));
    let is = |groups_: &[String], subjects: &[String]| {
        subjects.iter().any(|one| one == subject)
            || groups_.iter().any(|one| groups.contains(&one.as_str()))
    };
    let role = if is(&config.admin_groups, &config.admins) {
        Role::Admin
    } else if is(&config.auditor_groups, &config.auditors) {
        Role::Auditor
    } else {
        Role::User
    };
    Ok(Caller {
        name: users.first().map_or(subject, String::as_str).to_owned(),
        role,
        users,
        accounts: AccountsByCluster::new(),
        auth_method: AuthMethod::Oidc {
            issuer: issuer.to_owned(),
            subject: subject.to_owned(),
        },
        request: String::new(),
    })
}

/// The caller's Unix users: from the map; if the map has no entry, from the configured user claim.
fn users(
    config: &OidcConfig,
    claims: &Map<String, Value>,
    subject: &str,
    map: &IdentityMap,
) -> BTreeSet<String> {
    let issuer = config.issuer.as_str();
    let mapped = match config.users_by {
        UserClaim::Subject => map.users_of(issuer, |person| person.subject == subject),
        UserClaim::Email => {
            let verified = match claims.get("email_verified") {
                Some(Value::Bool(verified)) => *verified,
                Some(Value::String(verified)) => verified == "true",
                _ => false,
            };
            let email = claims.get("email").and_then(Value::as_str);
            match email.filter(|email| verified && !email.is_empty()) {
                Some(email) => {
                    map.users_of(issuer, |person| person.email.eq_ignore_ascii_case(email))
                }
                None => BTreeSet::new(),
            }
        }
    };
    if !mapped.is_empty() || config.user_claim.is_empty() {
        return mapped;
    }
    let named = lookup(claims, &config.user_claim).and_then(Value::as_str);
    // The claim must not name a user that the map assigns to another person.
    named
        .filter(|user| !user.is_empty() && map.get(user).is_none())
        .map(str::to_owned)
        .into_iter()
        .collect()
}

/// A claim by its name, or by a path to it: `realm_access.roles`.
fn lookup<'a>(claims: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    if let Some(value) = claims.get(name) {
        return Some(value);
    }
    let (first, rest) = name.split_once('.')?;
    lookup(claims.get(first)?.as_object()?, rest)
}

fn string_values(value: Option<&Value>) -> Vec<&str> {
    match value {
        Some(Value::String(value)) => vec![value],
        Some(Value::Array(string_values)) => {
            string_values.iter().filter_map(Value::as_str).collect()
        }
        _ => Vec::new(),
    }
}

fn describe_error(kind: &ErrorKind) -> &'static str {
    match kind {
        ErrorKind::ExpiredSignature => "it has expired (exp)",
        ErrorKind::ImmatureSignature => "it is not valid yet (nbf)",
        ErrorKind::InvalidAudience => "it is not for this audience (aud)",
        ErrorKind::InvalidIssuer => "its issuer is not trusted",
        ErrorKind::MissingRequiredClaim(_) => "it lacks one of exp, iss, aud, sub",
        ErrorKind::InvalidSignature => "its signature is invalid",
        _ => "it cannot be decoded",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ISSUER: &str = "https://id.example.org";

    fn caller(more: &str, claims: &Value) -> Result<Caller, Refusal> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("identity.toml");
        std::fs::write(
            &path,
            format!(
                "[users.alice]\nissuer = {ISSUER:?}\nsubject = 'a-1'\nemail = 'Alice@example.org'\n\
                 [users.alice-admin]\nissuer = {ISSUER:?}\nsubject = 'a-1'\n\
                 [users.bob]\nissuer = 'https://elsewhere'\nsubject = 'a-1'\n\
                 [users.carol]\nissuer = {ISSUER:?}\nsubject = 'c-1'\n"
            ),
        )
        .unwrap();
        let text = format!("issuer = {ISSUER:?}\naudience = ['mesh']\n{more}");
        let config: OidcConfig = toml::from_str(&text).unwrap();
        let map = IdentityMap::new(Some(path));
        identify(&config, claims.as_object().unwrap(), &map)
    }

    fn users(more: &str, claims: &Value) -> Vec<String> {
        caller(more, claims).unwrap().users.into_iter().collect()
    }

    #[test]
    fn the_map_gives_the_identity_of_a_user() {
        assert_eq!(
            users("", &json!({ "sub": "a-1" })),
            ["alice", "alice-admin"]
        );
        assert_eq!(users("", &json!({ "sub": "x" })), [""; 0]);
        let claims = json!({ "sub": "x", "email": "alice@example.org", "email_verified": true });
        assert_eq!(users("users_by = 'email'", &claims), ["alice"]);
        assert_eq!(users("", &claims), [""; 0]);
        let doubtful = json!({ "sub": "x", "email": "alice@example.org" });
        assert_eq!(users("users_by = 'email'", &doubtful), [""; 0]);
        // An empty address matches no entry of the map.
        let none = json!({ "sub": "x", "email": "", "email_verified": true });
        assert_eq!(users("users_by = 'email'", &none), [""; 0]);
        assert_eq!(
            caller("", &json!({ "sub": "" })),
            Err(Invalid("it has no subject (sub)"))
        );
    }

    #[test]
    fn a_claim_maps_to_a_user_only_if_it_is_trusted_and_the_map_agrees() {
        let claims = json!({ "sub": "d-1", "preferred_username": "dave" });
        assert_eq!(users("", &claims), [""; 0]);
        let trusting = "user_claim = 'preferred_username'";
        assert_eq!(users(trusting, &claims), ["dave"]);
        let stolen = json!({ "sub": "d-1", "preferred_username": "carol" });
        assert_eq!(users(trusting, &stolen), [""; 0]);
        let mapped = json!({ "sub": "a-1", "preferred_username": "dave" });
        assert_eq!(users(trusting, &mapped), ["alice", "alice-admin"]);
    }

    #[test]
    fn groups_and_subjects_give_roles() {
        let roles = "admin_groups = ['hpc-admins']\nauditor_groups = ['audit']\nadmins = ['root-1']\nauditors = ['e-1']";
        for (claims, role) in [
            (
                json!({ "sub": "x", "groups": ["users", "hpc-admins"] }),
                Role::Admin,
            ),
            (json!({ "sub": "x", "groups": "audit" }), Role::Auditor),
            (
                json!({ "sub": "x", "groups": ["audit", "hpc-admins"] }),
                Role::Admin,
            ),
            (json!({ "sub": "root-1" }), Role::Admin),
            (json!({ "sub": "e-1", "groups": null }), Role::Auditor),
            (
                json!({ "sub": "x", "groups": ["HPC-ADMINS", "hpc-admins-x", 5] }),
                Role::User,
            ),
            (
                json!({ "sub": "x", "groups": { "hpc-admins": true } }),
                Role::User,
            ),
        ] {
            assert_eq!(caller(roles, &claims).unwrap().role, role, "{claims}");
        }
        let nested = "group_claim = 'realm_access.roles'\nadmin_groups = ['a']";
        let claims = json!({ "sub": "x", "realm_access": { "roles": ["a"] } });
        assert_eq!(caller(nested, &claims).unwrap().role, Role::Admin);
        // A claim whose name is a URL with dots is not a path.
        let named = "group_claim = 'https://example.org/groups'\nadmin_groups = ['a']";
        let claims = json!({ "sub": "x", "https://example.org/groups": ["a"] });
        assert_eq!(caller(named, &claims).unwrap().role, Role::Admin);
    }
}
