//! How webhook endpoints are named: each by its owner, so two users may both have a `ci`.
//!
//! Everywhere but in its owner's own words an endpoint has its full name: `alice/ci`, or its name alone if it belongs to no user, as those of
//! `mesh.toml`. No name has a slash, so a full name has one reading.

/// The full name of an endpoint; the owner is empty for one that belongs to no user.
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

/// Full names that somebody may mean, who is these Unix users; the first that exists for them is meant. With a slash it is the full one
/// (`/ci`: of no user), without it is one of their own, and otherwise one of no user.
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
    fn a_name_is_ones_own_unless_it_says_whose_it_is() {
        let users = ["alice".to_owned(), "alice2".to_owned()];
        assert_eq!(candidates("ci", &users), ["alice/ci", "alice2/ci", "ci"]);
        assert_eq!(candidates("bob/ci", &users), ["bob/ci"]);
        assert_eq!(candidates("/ci", &users), ["ci"]);
        assert_eq!(candidates("ci", &[]), ["ci"]);
        for (owner, name) in [("alice", "ci"), ("", "ci"), ("odd/user", "a.b")] {
            assert_eq!(short(&full(owner, name)), name);
        }
    }
}
