//! Authenticates callers: by the uid of a Unix socket's peer, or by a bearer token (RFC 6750).

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{ConnectInfo, FromRequestParts, Request, State};
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use super::auth_state::{AuthState, FOR_A_NAME};
use super::oidc::Refusal;
use super::peer::Peer;
use super::{Caller, Problem, Role, metrics};

/// Requests to these paths have no caller: each is signed by its sender, which the route checks. Routes that ask for a [`Caller`] refuse them.
const SIGNED_PATHS: &str = "/v1/in/";
/// Audit entries hold no more characters of a request.
const MAX_LOGGED_REQUEST_CHARS: usize = 2_000;
/// Health checks must not wait for a user database or OIDC provider.
const FOR_A_HEALTH_CHECK: Duration = Duration::from_secs(1);

/// 401 for a request without credentials.
fn unauthorized() -> Problem {
    challenge(
        "Bearer realm=\"slurm-mesh\"",
        "send a token as `Authorization: Bearer <token>`, or call over the Unix socket",
    )
}

/// 401 for invalid credentials.
fn invalid(reason: &str) -> Problem {
    challenge(
        &format!(
            "Bearer realm=\"slurm-mesh\", error=\"invalid_token\", error_description=\"{reason}\""
        ),
        &format!("the token is refused: {reason}"),
    )
}

fn challenge(challenge: &str, detail: &str) -> Problem {
    let problem = Problem::new(StatusCode::UNAUTHORIZED, detail);
    match HeaderValue::from_str(challenge) {
        Ok(value) => problem.with(WWW_AUTHENTICATE, value),
        Err(_) => problem,
    }
}

/// Middleware that authenticates the caller, or answers 401.
pub(super) async fn authenticate(
    State(auth): State<Arc<AuthState>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    mut request: Request,
    next: Next,
) -> Response {
    if request.uri().path().starts_with(SIGNED_PATHS) {
        return next.run(request).await;
    }
    match find(&auth, peer, request.headers()).await {
        Ok(mut caller) => {
            metrics::caller(caller.auth_method.as_str(), "let_in");
            caller.request = asked(&request);
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(problem) => problem.into_response(),
    }
}

/// The caller that [`authenticate`] has found.
impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        parts.extensions.get().cloned().ok_or_else(unauthorized)
    }
}

/// A token takes precedence, also over the Unix socket, where a proxy may be at the other end.
async fn find(auth: &AuthState, peer: Peer, headers: &HeaderMap) -> Result<Caller, Problem> {
    match (bearer(headers)?, peer) {
        (Some(token), _) => authenticate_token(auth, token).await,
        (None, Peer::Unix { uid }) => unix(auth, uid).await,
        (None, Peer::Tcp { .. }) => Err(unauthorized()),
    }
}

/// True if the caller of a route without authentication may see everything: root, the user of this process, administrators and auditors.
/// False if that is not known in time.
pub(super) async fn sees_everything(auth: &AuthState, peer: Peer, headers: &HeaderMap) -> bool {
    if let Peer::Unix { uid } = peer
        && uid == rustix::process::geteuid().as_raw()
        && !headers.contains_key(AUTHORIZATION)
    {
        return true;
    }
    let caller = tokio::time::timeout(FOR_A_HEALTH_CHECK, find(auth, peer, headers)).await;
    matches!(caller, Ok(Ok(caller)) if caller.sees_everything())
}

fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let Some(header) = all.next() else {
        return Ok(None);
    };
    if all.next().is_some() {
        return Err(Problem::bad_request("more than one Authorization header"));
    }
    // RFC 9110 §11.1: the scheme is not case-sensitive.
    let token = header
        .to_str()
        .ok()
        .and_then(|text| text.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, token)| token.trim());
    match token {
        Some(token) if !token.is_empty() => Ok(Some(token)),
        _ => Err(unauthorized()),
    }
}

async fn authenticate_token(auth: &AuthState, token: &str) -> Result<Caller, Problem> {
    if let Some(caller) = auth.tokens.caller(token) {
        return Ok(auth.with_accounts(caller));
    }
    if !auth.oidc.looks_like(token) {
        metrics::caller("token", "refused");
        return Err(invalid("unknown token"));
    }
    match auth.oidc.caller(token, &auth.map).await {
        Ok(caller) => Ok(auth.with_accounts(caller)),
        Err(Refusal::Invalid(reason)) => {
            metrics::caller("oidc", "refused");
            Err(invalid(reason))
        }
        Err(Refusal::Unavailable) => {
            metrics::caller("oidc", "unavailable");
            Err(Problem::unavailable_for(
                "the token cannot be checked: the keys of its issuer are unavailable",
                10,
            ))
        }
    }
}

async fn unix(auth: &AuthState, uid: u32) -> Result<Caller, Problem> {
    let Ok(name) = auth.names.get(uid).await else {
        metrics::caller("unix", "unavailable");
        let within = FOR_A_NAME.as_secs();
        return Err(Problem::unavailable_for(
            format!("the system's user database did not answer within {within} s"),
            10,
        ));
    };
    let user = name.unwrap_or_else(|| uid.to_string());
    let role = if uid == 0 || auth.admins.contains(&user) {
        Role::Admin
    } else if auth.auditors.contains(&user) {
        Role::Auditor
    } else {
        Role::User
    };
    Ok(auth.with_accounts(Caller::peer(user, uid, role)))
}

/// The request as the audit records it.
fn asked(request: &Request) -> String {
    let path = request.uri().path_and_query();
    let asked = format!(
        "{} {}",
        request.method(),
        path.map_or("", |path| path.as_str())
    );
    match asked.char_indices().nth(MAX_LOGGED_REQUEST_CHARS) {
        Some((end, _)) => asked[..end].to_owned(),
        None => asked,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::coordinators_bucket::Coordinators;
    use super::*;
    use crate::{ConfigFile, UserNames};

    #[tokio::test]
    async fn a_user_database_that_hangs_is_named_and_asked_once_however_often_it_is_polled() {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let (go, gone) = std::sync::mpsc::channel::<()>();
        let gone = std::sync::Mutex::new(gone);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "[mesh]\ncluster = \"c\"\n").unwrap();
        let config = ConfigFile::load(&[], Some(file.path())).unwrap();
        let mesh = config.section("mesh").unwrap();
        let mut auth = AuthState::new(&mesh, Coordinators::default()).unwrap();
        auth.names = UserNames::asking(Duration::from_millis(100), move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            gone.lock().unwrap().recv().ok();
            None
        });
        unix(&auth, 4_711).await.unwrap_err();
        let is_asked = async || asked.load(Ordering::SeqCst) == 1;
        mesh_testkit::wait_until("it is asked", Duration::from_secs(60), is_asked).await;
        for _ in 0..20 {
            let problem = unix(&auth, 4_711).await.unwrap_err();
            assert_eq!(problem.status, 503);
            assert!(
                problem.detail.contains("did not answer within 5 s"),
                "{}",
                problem.detail
            );
        }
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        drop(go);
    }

    #[test]
    fn a_bearer_token_is_read_as_the_rfcs_say() {
        let read = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
            }
            bearer(&headers)
                .map(|token| token.map(str::to_owned))
                .map_err(|problem| problem.status)
        };
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&["Bearer abc"]), Ok(Some("abc".into())));
        assert_eq!(read(&["bEARER  abc"]), Ok(Some("abc".into())));
        for wrong in ["Bearer", "Bearer ", "Basic abc", "abc", ""] {
            assert_eq!(read(&[wrong]), Err(401), "{wrong:?}");
        }
        assert_eq!(read(&["Bearer a", "Bearer b"]), Err(400));
    }
}
