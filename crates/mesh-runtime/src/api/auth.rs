//! Who calls: by the uid of a Unix socket's peer, or by a bearer token over TCP.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::StatusCode;
use axum::http::header::AUTHORIZATION;
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use super::server::{Access, Peer};
use super::{Accounts, Caller, Means, Problem, Role};

pub(super) fn unauthorized() -> Problem {
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
                name: "token:token_file".to_owned(),
                role: Role::Admin,
                users: BTreeSet::new(),
                accounts: Accounts::new(),
                means: Means::Token,
                request: String::new(),
            }),
    };
    match caller {
        Some(mut caller) => {
            caller.request = asked(&request);
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
    Caller::peer(user, uid, role)
}

/// What is asked, for the audit.
fn asked(request: &Request) -> String {
    let path = request
        .uri()
        .path_and_query()
        .map_or("", |path| path.as_str());
    format!("{} {path}", request.method())
}

fn bearer(request: &Request) -> Option<&str> {
    request
        .headers()
        .get(AUTHORIZATION)?
        .to_str()
        .ok()?
        .strip_prefix("Bearer ")
}
