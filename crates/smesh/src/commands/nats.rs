//! `smesh nats`: users, permissions and streams for a site's own nats-server.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use mesh_bus::Bus;
use mesh_events::catalogue::{self, Accounts, Login, ROLES, SERVICES_ACCOUNT, STREAMS, quoted};
use mesh_events::subject;
use nkeys::KeyPair;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::cli::{Global, Nats, NatsConfig, NatsProvision};
use crate::error::Error;
use crate::up::data_dir::write_private;
use crate::up::nats_conf::max_store;
use crate::{settings, show};

/// Role of the hooks. The hook program has no NKey support.
const HOOK: &str = "hook";
/// User of leaf nodes, one for each cluster. It is no role: no program of slurm-mesh connects as it.
const LEAF: &str = "leaf";

pub(super) async fn run(global: &Global, args: Nats) -> Result<ExitCode, Error> {
    match args {
        Nats::Config(args) => config(global, &args)?,
        Nats::Provision(args) => provision(global, &args).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Files of `smesh nats config`.
pub(super) struct Written {
    /// Their folder.
    pub folder: PathBuf,
    secrets: Vec<PathBuf>,
    /// True if there were users of a former version.
    former: bool,
}

/// Writes users, rights and secrets of a cluster.
///
/// # Errors
/// If a file cannot be written, or an existing secret cannot be used.
pub(super) fn write_config(cluster: &str, args: &NatsConfig) -> Result<Written, Error> {
    fs::create_dir_all(&args.output).map_err(|source| Error::io("create", &args.output, source))?;
    let folder =
        fs::canonicalize(&args.output).map_err(|source| Error::io("find", &args.output, source))?;
    let mut users = Users::default();
    let added = args.add_cluster.iter().filter(|added| *added != cluster);
    let clusters: Vec<&str> = std::iter::once(cluster)
        .chain(added.map(String::as_str))
        .collect();
    for (n, name) in clusters.iter().enumerate() {
        let token = subject::token(name);
        let (folder, suffix) = match n {
            0 => (folder.clone(), String::new()),
            _ => (folder.join(&token), format!("-{token}")),
        };
        let roles = ROLES.iter().filter(|role| n == 0 || is_per_cluster(role));
        users.add(args, &folder, name, roles.copied().collect(), &suffix)?;
    }
    let Users { accounts, secrets } = users;
    let users = format!(
        "# Users of slurm-mesh for cluster {cluster}, written by `smesh nats config`: run it again after an upgrade; changes are lost.\n\
         accounts {{\n{}}}\n",
        accounts.render()
    );
    let former = is_of_one_account(&folder.join("users.conf"));
    // Private, because it contains the hooks' password.
    write_private(&folder.join("users.conf"), users.as_bytes(), None)?;
    write_private(&folder.join("nats.conf"), server(args).as_bytes(), None)?;
    Ok(Written {
        folder,
        secrets,
        former,
    })
}

fn config(global: &Global, args: &NatsConfig) -> Result<(), Error> {
    let cluster = settings::cluster(global)?;
    let Written {
        folder,
        secrets,
        former,
    } = write_config(&cluster, args)?;
    if former {
        anstream::eprintln!(
            "before a server takes this users.conf, stop it and move its streams: cd {}/jetstream && mv -T '$G' {SERVICES_ACCOUNT}; see docs/guide/nats.md, \"Accounts\"",
            args.store.display()
        );
    }
    if global.json {
        return show::line(json!({
            "cluster": cluster,
            "server": folder.join("nats.conf"),
            "users": folder.join("users.conf"),
            "secrets": secrets,
            "move_streams": former,
        }));
    }
    show::line(format!(
        "wrote nats.conf, users.conf and a secret for each of {} roles into {}\nnext: nats-server -c {} && smesh nats provision",
        ROLES.len(),
        folder.display(),
        folder.join("nats.conf").display()
    ))
}

/// True if a former version wrote the users, which were all in one account, the server's default one. Streams belong to an account.
fn is_of_one_account(users: &Path) -> bool {
    let text = fs::read_to_string(users).unwrap_or_default();
    text.lines().any(|line| line.starts_with("authorization"))
}

/// True if each cluster has a user of its own for the role.
fn is_per_cluster(role: &str) -> bool {
    let allowed = |cluster| {
        let rights = catalogue::permissions(role, cluster)?;
        Some((rights.publish, rights.subscribe))
    };
    allowed("a") != allowed("b")
}

/// Users of the server, and the files of their secrets.
#[derive(Default)]
struct Users {
    accounts: Accounts,
    secrets: Vec<PathBuf>,
}

impl Users {
    /// Adds the users of a cluster, with secrets in a folder. The suffix distinguishes names of users between clusters.
    fn add(
        &mut self,
        args: &NatsConfig,
        folder: &Path,
        cluster: &str,
        roles: Vec<&str>,
        suffix: &str,
    ) -> Result<(), Error> {
        fs::create_dir_all(folder).map_err(|source| Error::io("create", folder, source))?;
        for role in roles {
            let secret = Secret::find_or_make(folder, role)?;
            let (name, password) = (format!("{HOOK}{suffix}"), secret.text.as_str());
            let login = match role {
                HOOK => Login::Password {
                    name: &name,
                    password,
                },
                _ => Login::NKey(&secret.public),
            };
            self.accounts.add(role, cluster, login);
            if let (HOOK, Some(hub)) = (role, &args.leaf) {
                let leaf_name = format!("{LEAF}{suffix}");
                let leaf_secret = Secret::find_or_make(folder, LEAF)?;
                self.accounts
                    .add_leaf(cluster, &leaf_name, &leaf_secret.text);
                let hub = format!("{leaf_name}:{}@{hub}", leaf_secret.text);
                let leaf = leaf(args, cluster, login, &hub);
                write_private(&folder.join("leaf.conf"), leaf.as_bytes(), None)?;
                let hook = hook_toml(cluster, &name, password, &args.leaf_listen);
                write_private(&folder.join("hook.toml"), hook.as_bytes(), None)?;
            }
            self.secrets.push(secret.path);
        }
        Ok(())
    }
}

/// The configuration of a leaf node: a server on the Slurm host without streams of its own.
///
/// `hub` is the hub's address with user and password.
fn leaf(args: &NatsConfig, cluster: &str, hook: Login<'_>, hub: &str) -> String {
    let hook = catalogue::permissions(HOOK, cluster)
        .map(|rights| catalogue::user(&rights, hook))
        .unwrap_or_default();
    let (scheme, tls) = match (&args.tls_cert, &args.leaf_ca) {
        (None, _) => ("nats-leaf", String::new()),
        (Some(_), None) => ("tls", String::new()),
        (Some(_), Some(ca)) => {
            let ca = quoted(&ca.to_string_lossy());
            ("tls", format!(", tls {{ ca_file: {ca} }}"))
        }
    };
    format!(
        "# Configuration of the leaf node for the hooks of cluster {cluster}, written by `smesh nats config`; changes are lost.\n\
         server_name: {}\nlisten: {}\nmax_payload: 1MB\n\
         authorization {{\n  users: [\n{hook}  ]\n}}\n\
         leafnodes {{\n  remotes: [ {{ urls: [{}]{tls} }} ]\n}}\n",
        quoted(&format!("slurm-mesh-leaf-{cluster}")),
        quoted(&args.leaf_listen),
        quoted(&format!("{scheme}://{hub}")),
    )
}

/// The configuration of the hooks that connect to a leaf node.
fn hook_toml(cluster: &str, user: &str, password: &str, listen: &str) -> String {
    let quoted = |text: &str| toml::Value::from(text).to_string();
    format!(
        "# Configuration of the hooks of cluster {cluster}, written by `smesh nats config`; see hooks/README.md.\n\
         # On the Slurm host: /etc/slurm-mesh/hook.toml, owned by SlurmUser, mode 0600.\n\
         cluster = {}\n\
         spool = \"/var/spool/slurm-mesh\"\n\
         # Uid of the leaf node's process; hooks then send the password to no other.\n\
         # server_uid = 0\n\n\
         [nats]\nurl = {}\nuser = {}\npassword = {}\n",
        quoted(cluster),
        quoted(&format!(
            "nats://{}",
            listen.replace("0.0.0.0:", "127.0.0.1:")
        )),
        quoted(user),
        quoted(password),
    )
}

/// The configuration of one server.
fn server(args: &NatsConfig) -> String {
    let mut text = format!(
        "# Configuration of a nats-server for slurm-mesh, written by `smesh nats config`; changes are lost.\n\
         server_name: \"slurm-mesh\"\nlisten: {}\nmax_payload: 1MB\nwrite_deadline: \"10s\"\n\
         jetstream {{\n  store_dir: {}\n  # Acknowledged messages are on disk: the server's default loses them on power loss.\n  \
         sync_interval: always\n  # Reserved size of the streams, plus space for buckets.\n  max_file_store: {}\n  max_memory_store: 64MB\n}}\n",
        quoted(&args.listen),
        quoted(&args.store.to_string_lossy()),
        max_store(None),
    );
    let mut tls = String::new();
    if let (Some(cert), Some(key)) = (&args.tls_cert, &args.tls_key) {
        let client_ca = args.tls_client_ca.as_ref().map(|ca| {
            format!(
                "\n  ca_file: {}\n  verify: true",
                quoted(&ca.to_string_lossy())
            )
        });
        writeln!(
            tls,
            "tls {{\n  cert_file: {}\n  key_file: {}{}\n}}",
            quoted(&cert.to_string_lossy()),
            quoted(&key.to_string_lossy()),
            client_ca.unwrap_or_default()
        )
        .unwrap_or_default();
    }
    text.push_str(&tls);
    if let Some(hub) = &args.leaf {
        let port = hub.rsplit_once(':').map_or(hub.as_str(), |(_, port)| port);
        let listen = quoted(&format!("{}:{port}", listen_host(args)));
        writeln!(text, "leafnodes {{\n  listen: {listen}\n{tls}}}").unwrap_or_default();
    }
    text + "include users.conf\n"
}

/// Host part of the server's own address.
fn listen_host(args: &NatsConfig) -> &str {
    let listen = args.listen.rsplit_once(':');
    listen.map_or(args.listen.as_str(), |(host, _)| host)
}

/// Credentials of a role, in a file of their own.
struct Secret {
    path: PathBuf,
    /// Seed or password.
    text: String,
    /// Public key of the seed.
    public: String,
}

impl Secret {
    /// Reads the existing secret, or creates one.
    fn find_or_make(folder: &Path, role: &str) -> Result<Self, Error> {
        let path = folder.join(match role {
            HOOK | LEAF => format!("{role}.password"),
            _ => format!("{role}.seed"),
        });
        let unusable = |problem: String| Error::Failed(format!("{}: {problem}", path.display()));
        let text = match secret_file::read(&path) {
            Ok(text) => text.trim().to_owned(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let text = match role {
                    HOOK | LEAF => hex::encode(rand::random::<[u8; 24]>()),
                    _ => KeyPair::new_user()
                        .seed()
                        .map_err(|error| unusable(error.to_string()))?,
                };
                write_private(&path, format!("{text}\n").as_bytes(), None)?;
                text
            }
            Err(error) => return Err(unusable(error.to_string())),
        };
        let public = match role {
            HOOK | LEAF => String::new(),
            _ => KeyPair::from_seed(&text)
                .map_err(|_| {
                    unusable("it contains no NKey seed; delete it to create a new one".to_owned())
                })?
                .public_key(),
        };
        Ok(Self { path, text, public })
    }
}

async fn provision(global: &Global, args: &NatsProvision) -> Result<(), Error> {
    let context = settings::load(global, CancellationToken::new())?;
    let nats = mesh_bus::Config {
        provision: true,
        ..context.mesh.nats.clone()
    };
    if nats.url.is_empty() {
        return Err(Error::Usage(
            "mesh.nats.url is not set: `smesh up` runs its own nats-server and declares everything there".into(),
        ));
    }
    let failed = |error: mesh_bus::Error| Error::Failed(mesh_runtime::error_chain(&error));
    let bus = Bus::connect(&nats, "admin").await.map_err(failed)?;
    let ready = tokio::time::timeout(args.timeout, bus.ready(&context.shutdown)).await;
    match (ready, bus.problem()) {
        (Ok(ready), _) => ready.map_err(failed)?,
        (Err(_), Some(problem)) => return Err(Error::Failed(problem)),
        // The server answers but refuses a request. Repeating it returns the reason.
        (Err(_), None) => bus.provision().await.map_err(failed)?,
    }
    bus.close().await;
    let streams: Vec<&str> = STREAMS.iter().map(|stream| stream.name).collect();
    if global.json {
        return show::line(json!({ "nats": nats.redacted_url(), "streams": streams }));
    }
    show::line(format!(
        "{} has {} and their consumers and buckets",
        nats.redacted_url(),
        streams.join(", ")
    ))
}
