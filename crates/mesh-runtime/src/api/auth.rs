//! Who calls: by the uid of a Unix socket's peer, or by a bearer token over TCP.

use std::sync::Arc;

use axum::extract::{ConnectInfo, FromRequestParts, Request, State};
use axum::http::StatusCode;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use super::Problem;
use super::server::{Access, Peer};

/// What a caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Sees what concerns their own jobs.
    User,
    /// Sees and does everything.
    Admin,
}

/// Who calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Unix user name; `token` for bearers of the service token.
    pub user: String,
    /// Unix uid, over a Unix socket.
    pub uid: Option<u32>,
    /// What they may do.
    pub role: Role,
}

impl Caller {
    /// True if the caller may see what belongs to a Unix user.
    pub fn may_see(&self, owner: &str) -> bool {
        self.is_admin() || (!owner.is_empty() && self.user == owner)
    }

    /// True for administrators.
    pub fn is_admin(&self) -> bool {
        self.role == Role::Admin
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        parts.extensions.get().cloned().ok_or_else(unauthorized)
    }
}

fn unauthorized() -> Problem {
    Problem::new(
        StatusCode::UNAUTHORIZED,
        "show the service token: `Authorization: Bearer <token>`, or call over the Unix socket",
    )
}

/// Middleware that finds out who calls, or answers 401.
pub(super) async fn authenticate(
    State(access): State<Arc<Access>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    mut request: Request,
    next: Next,
) -> Response {
    let caller = match peer {
        Peer::Unix { uid } => Some(unix_caller(uid, &access)),
        Peer::Tcp => bearer(&request)
            .filter(|token| access.is_token(token))
            .map(|_| Caller {
                user: "token".to_owned(),
                uid: None,
                role: Role::Admin,
            }),
    };
    match caller {
        Some(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        None => unauthorized().into_response(),
    }
}

fn unix_caller(uid: u32, access: &Access) -> Caller {
    let user = uzers::get_user_by_uid(uid).map_or_else(
        || uid.to_string(),
        |user| user.name().to_string_lossy().into_owned(),
    );
    let role = if uid == 0 || access.admins.contains(&user) {
        Role::Admin
    } else {
        Role::User
    };
    Caller {
        user,
        uid: Some(uid),
        role,
    }
}

fn bearer(request: &Request) -> Option<&str> {
    request
        .headers()
        .get(AUTHORIZATION)?
        .to_str()
        .ok()?
        .strip_prefix("Bearer ")
}
