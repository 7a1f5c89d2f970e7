//! Configuration of the built-in nats-server: one user per role, with exactly the permissions of the catalogue. Pure.

use std::path::Path;

use mesh_events::catalogue::{self, Accounts, Login, ROLES, STREAMS, quoted};

/// User that may query the server's health, and nothing else.
pub const SYSTEM: &str = "system";

/// Inputs of the configuration.
#[derive(Debug)]
pub struct NatsConf<'a> {
    /// Cluster of this mesh's services.
    pub cluster: &'a str,
    /// Port on 127.0.0.1.
    pub port: u16,
    /// Folder for streams.
    pub store: &'a Path,
    /// Log file.
    pub log: &'a Path,
    /// Password of each role, in the order of [`ROLES`].
    pub passwords: &'a [String],
    /// Password of the system user.
    pub system_password: &'a str,
    /// Size limit of the public event stream in bytes, if configured.
    pub events_max_bytes: Option<i64>,
}

impl NatsConf<'_> {
    /// The text of nats.conf.
    pub fn render(&self) -> String {
        let mut accounts = Accounts::default();
        for (name, password) in ROLES.iter().zip(self.passwords) {
            accounts.add(name, self.cluster, Login::Password { name, password });
        }
        format!(
            "# Written by `smesh up` at every start; changes are lost. Set [mesh.nats] url to use another server.\n\
             server_name: \"slurm-mesh\"\n\
             listen: \"127.0.0.1:{port}\"\n\
             max_payload: 1MB\n\
             write_deadline: \"10s\"\n\
             log_file: {log}\n\
             logfile_size_limit: 16MB\n\
             logfile_max_num: 3\n\
             jetstream {{\n  store_dir: {store}\n  # Acknowledged messages are on disk: the server's default loses them on power loss.\n  \
             sync_interval: always\n  max_file_store: {max_store}\n  max_memory_store: 64MB\n}}\n\
             accounts {{\n  \"$SYS\" {{ users: [\n    {{ user: {system}, password: {system_password}, permissions: {{\n      \
             publish: {{ allow: [\"$SYS.REQ.SERVER.PING.HEALTHZ\"] }}\n      subscribe: {{ allow: [\"_INBOX_{SYSTEM}.>\"] }} }} }}\n  ] }}\n{accounts}}}\n",
            accounts = accounts.render(),
            system = quoted(SYSTEM),
            system_password = quoted(self.system_password),
            port = self.port,
            log = quoted(&self.log.to_string_lossy()),
            store = quoted(&self.store.to_string_lossy()),
            max_store = max_store(self.events_max_bytes),
        )
    }
}

/// Storage limit of the server, in bytes. Streams reserve their limits, so it must cover all of them, and some room for the buckets.
pub fn max_store(events_max_bytes: Option<i64>) -> i64 {
    let streams: i64 = STREAMS
        .iter()
        .map(|stream| match events_max_bytes {
            Some(bytes) if stream.name == catalogue::SLURM_EVENTS => bytes,
            _ => stream.max_bytes,
        })
        .sum();
    streams + (4 << 30)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_role_has_a_user_with_its_own_rights_only() {
        let passwords: Vec<String> = ROLES
            .iter()
            .map(|role| format!("secret-of-{role}"))
            .collect();
        let conf = NatsConf {
            cluster: "c1",
            port: 4333,
            store: Path::new("/d/a b"),
            log: Path::new("/d/log"),
            passwords: &passwords,
            system_password: "secret-of-system",
            events_max_bytes: None,
        };
        let text = conf.render();
        for role in ROLES {
            assert!(
                text.contains(&format!("user: \"{role}\", password: \"secret-of-{role}\"")),
                "{role}"
            );
        }
        let of_hook = text
            .split("user: \"hook\"")
            .nth(1)
            .and_then(|rest| rest.split("} } }").next())
            .unwrap();
        assert!(
            of_hook.contains("mesh.c1.hook.JobComp") && !of_hook.contains("slurm."),
            "{of_hook}"
        );
        assert!(
            text.contains("\"$JS.API.CONSUMER.CREATE.SLURM_EVENTS.webhook-dispatcher-f\"")
                && !text.contains("CONSUMER.CREATE.SLURM_EVENTS.*"),
            "{text}"
        );
        assert!(
            text.contains("sync_interval: always")
                && text.contains("listen: \"127.0.0.1:4333\"")
                && text.contains("\"/d/a b\"")
        );
    }

    #[test]
    fn a_bigger_bus_gets_a_bigger_store() {
        assert!(max_store(Some(100 << 30)) > max_store(None) + (90 << 30));
    }
}
