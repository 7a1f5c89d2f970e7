//! Accounts of the roles on NATS, as text for nats-server's configuration. Pure.
//!
//! The server does not check the subject to which a publisher wants the answer: within an account, whoever may publish anything that is
//! answered can have the answer stored anywhere. So who is not trusted with that has another account, where no stream is.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::permissions::{READER_STREAMS, permissions, read_directly, reader_info};
use super::{Permissions, inbox_prefix};
use crate::subject;

/// Account of the services, with all streams and buckets.
pub const SERVICES_ACCOUNT: &str = "mesh";
/// Account of readers of the public bus.
const READERS_ACCOUNT: &str = "mesh-readers";

/// The account of a role.
pub fn account(role: &str, cluster: &str) -> String {
    match role {
        // One for each cluster: an answer could otherwise ring for another one.
        "hook" => format!("mesh-hooks-{}", subject::token(cluster)),
        "reader" => READERS_ACCOUNT.to_owned(),
        _ => SERVICES_ACCOUNT.to_owned(),
    }
}

/// How a user authenticates.
#[derive(Clone, Copy, Debug)]
pub enum Login<'a> {
    /// User name and password.
    Password {
        /// Name of the user.
        name: &'a str,
        /// Its password.
        password: &'a str,
    },
    /// Public key of an NKey.
    NKey(&'a str),
}

/// A server user with these permissions.
pub fn user(rights: &Permissions, login: Login<'_>) -> String {
    let login = match login {
        Login::Password { name, password } => {
            format!("user: {}, password: {}", quoted(name), quoted(password))
        }
        Login::NKey(key) => format!("nkey: {}", quoted(key)),
    };
    format!(
        "    {{ {login}, permissions: {{\n      publish: {{ allow: [{}] }}\n      subscribe: {{ allow: [{}] }} }} }}\n",
        list(&rights.publish),
        list(&rights.subscribe)
    )
}

/// Quotes a text: the server interprets `$` and digits in an unquoted value.
pub fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

fn list(subjects: &[String]) -> String {
    let quoted: Vec<String> = subjects.iter().map(|subject| quoted(subject)).collect();
    quoted.join(", ")
}

/// The users of a server, by account.
#[derive(Debug, Default)]
pub struct Accounts {
    /// Users of the services.
    services: String,
    readers: String,
    /// Users of the hooks, by token of their cluster.
    hooks: BTreeMap<String, String>,
}

impl Accounts {
    /// Adds a user for a role in a cluster. False if the role is unknown.
    pub fn add(&mut self, role: &str, cluster: &str, login: Login<'_>) -> bool {
        let Some(rights) = permissions(role, cluster) else {
            return false;
        };
        let users = match role {
            "hook" => self.hooks.entry(subject::token(cluster)).or_default(),
            "reader" => &mut self.readers,
            _ => &mut self.services,
        };
        users.push_str(&user(&rights, login));
        true
    }

    /// Adds the user by which leaf nodes of a cluster's hooks connect. It may publish to the whole subject that its account imports: with
    /// fewer rights the server does not forward its interest to the leaf node, and every doorbell is answered by "no responders".
    pub fn add_leaf(&mut self, cluster: &str, name: &str, password: &str) {
        let cluster = subject::token(cluster);
        let doorbells = quoted(&doorbells(&cluster));
        let text = format!(
            "    {{ user: {}, password: {}, allowed_connection_types: [LEAFNODE], permissions: {{\n      \
             publish: {{ allow: [{doorbells}] }}\n      subscribe: {{ allow: [{}] }} }} }}\n",
            quoted(name),
            quoted(password),
            quoted(&format!("{}.>", inbox_prefix("hook"))),
        );
        self.hooks.entry(cluster).or_default().push_str(&text);
    }

    /// The accounts, without the `accounts { … }` around them.
    pub fn render(&self) -> String {
        let (mut exports, mut others) = (String::new(), String::new());
        for (cluster, users) in &self.hooks {
            let (name, subject) = (quoted(&account("hook", cluster)), doorbells(cluster));
            writeln!(exports, "    {}", service(&subject, &name, "")).unwrap_or_default();
            writeln!(
                others,
                "  {name} {{\n  imports: [\n    {}\n  ]\n  users: [\n{users}  ]\n  }}",
                imported_service(&subject, "")
            )
            .unwrap_or_default();
        }
        if !self.readers.is_empty() {
            exports.push_str(&reader_exports());
            others.push_str(&readers(&self.readers));
        }
        format!(
            "  {} {{\n  jetstream: enabled\n  exports: [\n{exports}  ]\n  users: [\n{}  ]\n  }}\n{others}",
            quoted(SERVICES_ACCOUNT),
            self.services
        )
    }
}

/// Doorbells of a cluster, whose token is given.
fn doorbells(cluster: &str) -> String {
    format!("mesh.{cluster}.hook.*")
}

fn service(subject: &str, to: &str, more: &str) -> String {
    format!("{{ service: {}, accounts: [{to}]{more} }}", quoted(subject))
}

fn imported_service(subject: &str, more: &str) -> String {
    format!(
        "{{ service: {{ account: {}, subject: {} }}{more} }}",
        quoted(SERVICES_ACCOUNT),
        quoted(subject)
    )
}

fn reader_exports() -> String {
    let to = quoted(READERS_ACCOUNT);
    let mut text = String::new();
    for (stream, subjects) in READER_STREAMS {
        let [info, direct, direct_last] = read_directly(stream);
        let mut lines = vec![service(&info, &to, "")];
        // A batch is several messages.
        for subject in [direct, direct_last] {
            lines.push(service(&subject, &to, ", response_type: stream"));
        }
        let live = |subject: &&str| format!("{{ stream: {}, accounts: [{to}] }}", quoted(subject));
        lines.extend(subjects.iter().map(live));
        for line in lines {
            writeln!(text, "    {line}").unwrap_or_default();
        }
    }
    text
}

fn readers(users: &str) -> String {
    let (mut imports, mut mappings) = (String::new(), String::new());
    for (stream, subjects) in READER_STREAMS {
        let [info, direct, direct_last] = read_directly(stream);
        // Every account has JetStream's API of its own under the same subject, and answers first: it has no streams.
        let local = reader_info(stream);
        writeln!(mappings, "    {}: {}", quoted(&info), quoted(&local)).unwrap_or_default();
        let mut lines = vec![imported_service(
            &info,
            &format!(", to: {}", quoted(&local)),
        )];
        for subject in [direct, direct_last] {
            lines.push(imported_service(&subject, ""));
        }
        lines.extend(subjects.iter().map(|subject| {
            format!(
                "{{ stream: {{ account: {}, subject: {} }} }}",
                quoted(SERVICES_ACCOUNT),
                quoted(subject)
            )
        }));
        for line in lines {
            writeln!(imports, "    {line}").unwrap_or_default();
        }
    }
    format!(
        "  {} {{\n  imports: [\n{imports}  ]\n  mappings: {{\n{mappings}  }}\n  users: [\n{users}  ]\n  }}\n",
        quoted(READERS_ACCOUNT)
    )
}
