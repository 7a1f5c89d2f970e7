//! `smesh nats`: users, permissions and streams for a site's own nats-server.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use mesh_bus::Bus;
use mesh_events::catalogue::{ROLES, STREAMS};
use nkeys::KeyPair;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::cli::{Global, Nats, NatsConfig, NatsProvision};
use crate::error::Error;
use crate::up::data_dir::write_private;
use crate::up::nats_conf::{Login, max_store, quoted, user};
use crate::{settings, show};

/// Role of the hooks. The hook program has no NKey support.
const HOOK: &str = "hook";

pub(super) async fn run(global: &Global, args: Nats) -> Result<ExitCode, Error> {
    match args {
        Nats::Config(args) => config(global, &args)?,
        Nats::Provision(args) => provision(global, &args).await?,
    }
    Ok(ExitCode::SUCCESS)
}

fn config(global: &Global, args: &NatsConfig) -> Result<(), Error> {
    let cluster = settings::cluster(global)?;
    fs::create_dir_all(&args.output).map_err(|source| Error::io("create", &args.output, source))?;
    let folder =
        fs::canonicalize(&args.output).map_err(|source| Error::io("find", &args.output, source))?;
    let mut users = String::new();
    let mut secrets = Vec::new();
    for role in ROLES {
        let secret = Secret::find_or_make(&folder, role)?;
        let login = match *role {
            HOOK => Login::Password(&secret.text),
            _ => Login::NKey(&secret.public),
        };
        users.push_str(&user(role, &cluster, login).unwrap_or_default());
        secrets.push(secret.path);
    }
    let users = format!(
        "# Users of slurm-mesh for cluster {cluster}, written by `smesh nats config`: run it again after an upgrade; changes are lost.\n\
         authorization {{\n  users: [\n{users}  ]\n}}\n"
    );
    // Private, because it contains the hooks' password.
    write_private(&folder.join("users.conf"), users.as_bytes(), None)?;
    write_private(&folder.join("nats.conf"), server(args).as_bytes(), None)?;
    if global.json {
        return show::line(json!({
            "cluster": cluster,
            "server": folder.join("nats.conf"),
            "users": folder.join("users.conf"),
            "secrets": secrets,
        }));
    }
    show::line(format!(
        "wrote nats.conf, users.conf and a secret for each of {} roles into {}\nnext: nats-server -c {} && smesh nats provision",
        ROLES.len(),
        folder.display(),
        folder.join("nats.conf").display()
    ))
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
    if let (Some(cert), Some(key)) = (&args.tls_cert, &args.tls_key) {
        let client_ca = args.tls_client_ca.as_ref().map(|ca| {
            format!(
                "\n  ca_file: {}\n  verify: true",
                quoted(&ca.to_string_lossy())
            )
        });
        writeln!(
            text,
            "tls {{\n  cert_file: {}\n  key_file: {}{}\n}}",
            quoted(&cert.to_string_lossy()),
            quoted(&key.to_string_lossy()),
            client_ca.unwrap_or_default()
        )
        .unwrap_or_default();
    }
    text + "include users.conf\n"
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
            HOOK => format!("{role}.password"),
            _ => format!("{role}.seed"),
        });
        let unusable = |problem: String| Error::Failed(format!("{}: {problem}", path.display()));
        let text = match secret_file::read(&path) {
            Ok(text) => text.trim().to_owned(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let text = match role {
                    HOOK => hex::encode(rand::random::<[u8; 24]>()),
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
            HOOK => String::new(),
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
