//! Names of webhook endpoints: scoped by owner, so two users may both have a `ci`.
//!
//! Except in input of its owner, an endpoint is named by its full name: `alice/ci`, or the name alone if no user owns it, as for endpoints
//! of `mesh.toml`. No name contains a slash, so full names are unambiguous.

/// The full name of an endpoint; `owner` is empty for one without an owner.
pub fn full(owner: &str, name: &str) -> String {
    if owner.is_empty() {
        name.to_owned()
    } else {
        format!("{owner}/{name}")
    }
}

/// The name within a full name.
pub fn short(full: &str) -> &str {
    full.rsplit_once('/').map_or(full, |(_, name)| name)
}

/// The owner in a full name; empty if no user owns the endpoint.
pub fn owner(full: &str) -> &str {
    full.rsplit_once('/').map_or("", |(owner, _)| owner)
}

/// Full names that a caller with these Unix users may mean; the first that exists applies. A name with a slash is a full name (`/ci`:
/// without owner). One without a slash is the caller's own, or else one without owner.
pub fn candidates<'a>(named: &str, users: impl IntoIterator<Item = &'a String>) -> Vec<String> {
    if let Some(unowned) = named.strip_prefix('/') {
        return vec![unowned.to_owned()];
    }
    if named.contains('/') {
        return vec![named.to_owned()];
    }
    let own = users.into_iter().map(|user| full(user, named));
    own.chain([named.to_owned()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_owner_is_the_callers() {
        let users = ["alice".to_owned(), "alice2".to_owned()];
        assert_eq!(candidates("ci", &users), ["alice/ci", "alice2/ci", "ci"]);
        assert_eq!(candidates("bob/ci", &users), ["bob/ci"]);
        assert_eq!(candidates("/ci", &users), ["ci"]);
        assert_eq!(candidates("ci", &[]), ["ci"]);
        for (owner, name) in [("alice", "ci"), ("", "ci"), ("odd/user", "a.b")] {
            assert_eq!(short(&full(owner, name)), name);
            assert_eq!(super::owner(&full(owner, name)), owner);
        }
    }
}
