//! `smesh init`: a commented mesh.toml for this machine, or what a release of the Helm chart needs.

mod kubernetes;

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;
use slurm_types::HostList;

use crate::cli;
use crate::error::Error;
use crate::settings::{HOOK_CONFIG, SYSTEM_CONFIG};
use crate::show;
use crate::slurm_conf::{NodeLine, SlurmConf};

/// Its unit, if the package slurm-mesh is installed.
const UNIT: &str = "/usr/lib/systemd/system/slurm-mesh.service";
/// User and state directory of the unit.
const UNIT_USER: &str = "slurm";
const DATA_DIR: &str = "/var/lib/slurm-mesh";
/// Folders where a unit finds programs.
const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const PRICE_BOOK: &str = "price-book.toml";
const IDENTITY_MAP: &str = "identity.toml";

const IDENTITIES: &str = r#"# OIDC identities of Unix users. Reloaded when it changes; later events contain them.
#
# [users.alice]
# issuer = "https://id.example.org"        # OIDC issuer
# subject = "248289761001"                 # OIDC subject
# email = "alice@example.org"
# name = "Alice Doe"
"#;

const PRICES: &str = r#"# Prices of nodes. Change `version` with every change; cost events contain it. `smesh price check` compares the prices with expected costs of jobs.
name = "starter"
version = "1"
currency = "EUR"

# max_share: the largest of the CPU, memory and GPU part of a node is charged. Others: weighted_share, whole_node, billing.
mode = "max_share"

# One [[node_type]] per kind of node: its resources for jobs, and its price per hour. 0 means no price: set your prices.
"#;

pub(super) fn run(global: &cli::Global, args: &cli::Init) -> Result<ExitCode, Error> {
    if args.kubernetes {
        return kubernetes::run(global, args);
    }
    let path = SlurmConf::find(args.slurm_conf.as_deref())?;
    let conf = SlurmConf::read(&path)?;
    let path = std::path::absolute(&path).map_err(|source| Error::io("find", &path, source))?;
    let cluster = conf
        .get("ClusterName")
        .ok_or_else(|| Error::Failed(format!("{} has no ClusterName", path.display())))?;
    let data_dir = match &args.data_dir {
        Some(folder) => {
            std::path::absolute(folder).map_err(|source| Error::io("find", folder, source))?
        }
        None => PathBuf::from(DATA_DIR),
    };
    let named = args.output.as_deref().unwrap_or(Path::new("mesh.toml"));
    let output = std::path::absolute(named).map_err(|source| Error::io("find", named, source))?;
    let folder = output.parent().unwrap_or(Path::new("/"));
    let accounting = conf
        .get("AccountingStorageType")
        .is_some_and(|kind| kind.eq_ignore_ascii_case("accounting_storage/slurmdbd"));
    let text = mesh_toml(
        cluster,
        &data_dir,
        &path,
        conf.slurm_user(),
        accounting,
        !conf.nodes.is_empty(),
    );
    // The configuration first: if it may not be replaced, no other file is written.
    let mut files = vec![(named.to_owned(), text)];
    for (name, text) in [
        (PRICE_BOOK, price_book(&conf)),
        (IDENTITY_MAP, IDENTITIES.to_owned()),
    ] {
        let path = named.with_file_name(name);
        if !path.exists() || args.force {
            files.push((path, text));
        }
    }
    // Where mesh-hook looks for it. The file itself is written by `smesh up`.
    let link = Path::new(mesh_hook::config::DEFAULT_PATH);
    let link = (link.parent() == Some(folder) && link.symlink_metadata().is_err()).then_some(link);
    let paths = files.iter().map(|(path, _)| path.as_path()).chain(link);
    if args.dry_run {
        show::line(&files[0].1)?;
        for path in paths {
            show::line(format!("# would write {}", path.display()))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if !folder.is_dir() {
        fs::create_dir_all(folder)
            .and_then(|()| fs::set_permissions(folder, fs::Permissions::from_mode(0o755)))
            .map_err(|source| Error::io("create", folder, source))?;
    }
    for (path, text) in &files {
        write(path, text, args.force)?;
    }
    if let Some(link) = link {
        symlink(data_dir.join(HOOK_CONFIG), link)
            .map_err(|source| Error::io("write", link, source))?;
    }
    if global.json {
        let wrote: Vec<&Path> = paths.collect();
        show::line(json!({ "cluster": cluster, "wrote": wrote }))?;
        return Ok(ExitCode::SUCCESS);
    }
    for path in paths {
        show::line(format!("wrote {}", path.display()))?;
    }
    show::line(format!("\nCluster {cluster}. Next:"))?;
    if output == Path::new(SYSTEM_CONFIG) && Path::new(UNIT).exists() {
        show::line(next_steps(&data_dir, conf.slurm_user()))?;
    } else {
        show::line(steps_without_unit(
            named,
            output == Path::new(SYSTEM_CONFIG),
            &data_dir,
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What to do after the installation of the package.
fn next_steps(data_dir: &Path, slurm_user: &str) -> String {
    let mut text = String::new();
    let mut drop_in = String::new();
    if slurm_user != UNIT_USER {
        drop_in.push_str(&format!("    User={slurm_user}\n    Group=\n"));
    }
    if data_dir != Path::new(DATA_DIR) {
        let data_dir = data_dir.display();
        text.push_str(&format!("  install -d -o {slurm_user} -m 711 {data_dir}\n"));
        drop_in.push_str(&format!("    ReadWritePaths={data_dir}\n"));
    }
    if !drop_in.is_empty() {
        text.push_str(&format!(
            "  systemctl edit slurm-mesh            and write:\n    [Service]\n{drop_in}"
        ));
    }
    text.push_str(&format!(
        "  edit {PRICE_BOOK} and {IDENTITY_MAP}; they may also be changed later, while slurm-mesh runs\n  \
         systemctl enable --now slurm-mesh\n  \
         smesh doctor                         checks everything and says what to fix\n  \
         smesh hooks print                    optional: lines for slurm.conf, for events without delay"
    ));
    text
}

/// What to do after an installation by hand.
fn steps_without_unit(config: &Path, is_found: bool, data_dir: &Path) -> String {
    let smesh = match is_found {
        true => "smesh".to_owned(),
        false => format!("smesh --config {}", config.display()),
    };
    format!(
        "  edit {PRICE_BOOK} and {IDENTITY_MAP}; they may also be changed later, while slurm-mesh runs\n  \
         {smesh} up                as a user that can write to {}; runs until Ctrl-C\n  \
         {smesh} doctor            in another shell: checks everything and says what to fix\n  \
         {smesh} hooks print       optional: lines for slurm.conf, for events without delay",
        data_dir.display()
    )
}

fn write(path: &Path, text: &str, force: bool) -> Result<(), Error> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .create_new(!force)
        .truncate(true)
        .open(path);
    let written = file.and_then(|mut file| {
        // Commands of every user read these files, whatever the umask. Only the owner may write, or smesh does not trust them.
        file.set_permissions(fs::Permissions::from_mode(0o644))?;
        file.write_all(text.as_bytes())
    });
    match written {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            Err(Error::Failed(format!(
                "{} exists; replace it with --force, or write to another file with -o",
                path.display()
            )))
        }
        result => result.map_err(|source| Error::io("write", path, source)),
    }
}

/// Folder of Slurm's commands, if a unit would not find them.
fn bin_dir() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folder = std::env::split_paths(&path)
        .find(|folder| folder.is_absolute() && folder.join("scontrol").is_file())?;
    std::env::split_paths(SYSTEM_PATH)
        .all(|known| known != folder)
        .then_some(folder)
}

/// A first price book: this cluster's nodes, without prices.
fn price_book(conf: &SlurmConf) -> String {
    let quoted = |text: &str| toml::Value::from(text).to_string();
    let mut text = PRICES.to_owned();
    for (n, node) in kinds(&conf.nodes).iter().enumerate() {
        let gpu = if node.gpus > 0 {
            format!("gpu = {}\n", node.gpus)
        } else {
            String::new()
        };
        text.push_str(&format!(
            "\n[[node_type]]\nname = \"type-{}\"\nnodes = {}\ncpu = {}\nmem = \"{}M\"\n{gpu}\n    [[node_type.price]]\n    on_demand = \"0\"\n",
            n + 1,
            quoted(&node.names),
            node.cpus,
            node.memory_mib,
        ));
    }
    text
}

/// Groups the nodes by their resources. slurm.conf may need several lines for them, prices do not.
fn kinds(lines: &[NodeLine]) -> Vec<NodeLine> {
    let mut kinds: Vec<NodeLine> = Vec::new();
    for line in lines {
        match kinds.iter_mut().find(|kind| kind.is_like(line)) {
            Some(kind) => {
                let names = format!("{},{}", kind.names, line.names);
                // A host list that cannot be expanded here stays as written. Reading the price book reports its faults.
                kind.names =
                    HostList::expand(&names).map_or(names, |hosts| HostList::compress(&hosts));
            }
            None => kinds.push(line.clone()),
        }
    }
    kinds
}

fn mesh_toml(
    cluster: &str,
    data_dir: &Path,
    slurm_conf: &Path,
    slurm_user: &str,
    accounting: bool,
    prices: bool,
) -> String {
    let quoted = |text: &str| toml::Value::from(text).to_string();
    let path = |path: &Path| quoted(&path.to_string_lossy());
    let accounting = if accounting {
        ""
    } else {
        "\n[ingest]\n# This cluster has no slurmdbd: ends that slurmctld has purged cannot be confirmed.\naccounting = false\n"
    };
    format!(
        r#"# slurm-mesh. All users of smesh can read this file. Secrets are in separate files, whose paths are set here.
# `smesh up --check-config` checks it. docs/reference/configuration.md in the sources of slurm-mesh lists every key with its default.
# Environment variables take precedence: MESH_MESH__NATS__URL is [mesh.nats] url, MESH_INGEST__POLL_INTERVAL is [ingest] poll_interval.

[mesh]
cluster = {cluster}
# Databases, credentials and the spool.
data_dir = {data_dir}
# OIDC identities of users. Paths are relative to this file.
identity_map = "{IDENTITY_MAP}"

# NATS: without a url, `smesh up` runs its own nats-server.
# [mesh.nats]
# url = "nats://127.0.0.1:4222"
# user = "..."
# password_file = "..."

[mesh.api]
# The Unix socket is <data_dir>/api.sock; callers see what their uid may see. These users see everything, as do root and the user of `smesh up`.
admins = [{slurm_user}]
# TCP, for callers with the token:
# listen = "0.0.0.0:8686"
# token_file = "api.token"

# [mesh.telemetry]
# otlp_endpoint = "http://127.0.0.1:4317"
# log_format = "json"

[slurm]
conf = {slurm_conf}
{bin_dir}{accounting}
[cost-engine]
{price_book}

# Webhook endpoints of the site. Everybody can add their own: `smesh webhooks --help`.
# [[webhook-dispatcher.endpoints]]
# name = "team-slack"
# url_file = "team-slack.url"      # the Slack URL is a secret, in a file that only the user of `smesh up` may read
# format = "slack"
"#,
        price_book = if prices {
            format!("price_book = \"{PRICE_BOOK}\"")
        } else {
            format!("# price_book = \"{PRICE_BOOK}\"")
        },
        cluster = quoted(cluster),
        data_dir = path(data_dir),
        slurm_user = quoted(slurm_user),
        slurm_conf = path(slurm_conf),
        bin_dir = bin_dir().map_or_else(String::new, |folder| format!(
            "bin_dir = {}\n",
            path(&folder)
        )),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_are_alike_share_a_type() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slurm.conf");
        fs::write(
            &path,
            "NodeName=n1 CPUs=4 RealMemory=8000\nNodeName=g1 CPUs=4 RealMemory=8000 Gres=gpu:a100:2\n\
             NodeName=n[2-3] CPUs=4 RealMemory=8000\nNodeName=h1 CPUs=4 RealMemory=8000 Gres=gpu:h100:2\n",
        )
        .unwrap();
        let text = price_book(&SlurmConf::read(&path).unwrap());
        let book: toml::Table = text.parse().unwrap();
        let types = book["node_type"].as_array().unwrap();
        let nodes: Vec<_> = types
            .iter()
            .map(|kind| kind["nodes"].as_str().unwrap())
            .collect();
        assert_eq!(nodes, ["n[1-3]", "g1", "h1"]);
    }
}
