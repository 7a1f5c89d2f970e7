//! A file with a secret that others may read is refused, for every key and option that names one.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use clap::CommandFactory as _;
use mesh_runtime::{ConfigFile, Context, MeshConfig};
use serde::de::DeserializeOwned;
use smesh::cli::Cli;
use tokio_util::sync::CancellationToken;

use crate::mesh::{Mesh, stderr};

/// Keys of files without secrets.
const PUBLIC: &[&str] = &[
    "mesh.nats.ca_file",
    "mesh.nats.cert_file",
    "mesh.api.cert_file",
    "webhook-dispatcher.ca_file",
];

/// Key, and a configuration in which it names the file `secret`.
const SECRET: &[(&str, &str)] = &[
    (
        "mesh.nats.password_file",
        "[mesh.nats]\nurl = 'nats://127.0.0.1:1'\nuser = 'u'\npassword_file = 'secret'",
    ),
    (
        "mesh.nats.credentials_file",
        "[mesh.nats]\nurl = 'nats://127.0.0.1:1'\ncredentials_file = 'secret'",
    ),
    (
        "mesh.nats.nkey_file",
        "[mesh.nats]\nurl = 'nats://127.0.0.1:1'\nnkey_file = 'secret'",
    ),
    (
        "mesh.nats.key_file",
        "[mesh.nats]\nurl = 'nats://127.0.0.1:1'\ncert_file = 'public.pem'\nkey_file = 'secret'",
    ),
    (
        "mesh.api.key_file",
        "[mesh.api]\nlisten = '127.0.0.1:0'\ncert_file = 'public.pem'\nkey_file = 'secret'\n[[mesh.api.oidc]]\nissuer = 'https://127.0.0.1:1'\naudience = ['mesh']",
    ),
    ("mesh.api.token_file", "[mesh.api]\ntoken_file = 'secret'"),
    (
        "mesh.api.tokens.file",
        "[[mesh.api.tokens]]\nname = 'portal'\nrole = 'admin'\nfile = 'secret'",
    ),
    (
        "slurm.token_file",
        "[slurm]\nsource = 'rest'\nrest_url = 'http://127.0.0.1:1'\ntoken_file = 'secret'",
    ),
    (
        "ledger.checkpoint.key_file",
        // Below the data directory, because relative paths of the ledger start there.
        "[ledger.checkpoint]\nkey_file = '../secret'",
    ),
    (
        "workflow-trigger.sources.secret_file",
        "[[workflow-trigger.sources]]\nname = 'x'\nsignature = 'hmac'\nsecret_file = 'secret'\n[[workflow-trigger.rules]]\nname = 'y'\nowner = 'alice'\non = { source = 'x' }\naction = { publish = 'a.b' }",
    ),
    (
        "webhook-dispatcher.secrets_key_file",
        "[webhook-dispatcher]\nsecrets_key_file = 'secret'",
    ),
    (
        "webhook-dispatcher.proxy.credentials_file",
        "[webhook-dispatcher.proxy]\nurl = 'http://127.0.0.1:1'\ncredentials_file = 'secret'",
    ),
    (
        "webhook-dispatcher.endpoints.url_file",
        "[[webhook-dispatcher.endpoints]]\nname = 'x'\nurl_file = 'secret'\nformat = 'slack'",
    ),
    (
        "webhook-dispatcher.endpoints.secret_file",
        "[[webhook-dispatcher.endpoints]]\nname = 'x'\nurl = 'https://example.org/'\nsecret_file = 'secret'",
    ),
    (
        "webhook-dispatcher.endpoints.authorization",
        "[[webhook-dispatcher.endpoints]]\nname = 'x'\nurl = 'https://example.org/'\nheaders = { authorization = { file = 'secret' } }",
    ),
];

/// The same for a setting of a format, as listed in docs/guide/webhook-formats.md. All of them are read by one function.
const OF_FORMATS: &[(&str, &str)] = &[(
    "webhook-dispatcher.endpoints.routing_key",
    "[[webhook-dispatcher.endpoints]]\nname = 'x'\nformat = { type = 'pagerduty', routing_key = { file = 'secret' } }",
)];

/// Secrets written directly in mesh.toml.
const INLINE: &[(&str, &str)] = &[
    (
        "ledger.db.url",
        "[ledger.db]\nurl = 'postgres://mesh:s3cret@127.0.0.1:1/ledger'",
    ),
    (
        "mesh.nats.password",
        "[mesh.nats]\nurl = 'nats://127.0.0.1:1'\nuser = 'u'\npassword = 's3cret'",
    ),
    (
        "webhook-dispatcher.endpoints[0].secret",
        "[[webhook-dispatcher.endpoints]]\nname = 'x'\nurl = 'https://example.org/'\nsecret = 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw'",
    ),
];

/// Every key of a section's defaults, also commented ones, that names a file: `…_file`, `file`, or `{ file = … }`.
fn file_keys(defaults: &str) -> BTreeSet<String> {
    let mut section = String::new();
    let mut keys = BTreeSet::new();
    for line in defaults.lines() {
        let line = line.trim_start_matches(['#', ' ']);
        if line.starts_with('[') {
            let end = line.find(']').unwrap();
            line[..end].trim_start_matches('[').clone_into(&mut section);
        }
        let names = |text: &str| -> Vec<String> {
            let names = text.split(|c: char| !c.is_ascii_lowercase() && c != '_');
            names
                .map(str::to_owned)
                .filter(|name| !name.is_empty())
                .collect()
        };
        keys.extend(
            names(line)
                .iter()
                .filter(|name| name.ends_with("_file"))
                .map(|name| format!("{section}.{name}")),
        );
        if line.starts_with("file = ") {
            keys.insert(format!("{section}.file"));
        }
        if let Some((before, _)) = line.split_once(" = { file = ") {
            let name = names(before).pop().unwrap();
            keys.insert(format!("{section}.{name}"));
        }
    }
    keys
}

fn mesh_with(configuration: &str, mode: u32) -> Mesh {
    let mesh = Mesh::init();
    let text = format!("[mesh]\ncluster = 'testbed'\ndata_dir = 'data'\n{configuration}\n");
    mesh_testkit::write_private(&mesh.path("mesh.toml"), text);
    fs::write(mesh.path("public.pem"), "-----BEGIN CERTIFICATE-----\n").unwrap();
    fs::write(mesh.path("secret"), "0123456789abcdef0123456789abcdef").unwrap();
    fs::set_permissions(mesh.path("secret"), fs::Permissions::from_mode(mode)).unwrap();
    mesh
}

#[test]
fn every_key_that_names_a_file_is_known_here() {
    let mesh = include_str!("../../../mesh-runtime/config/default.toml");
    let sections = smesh::services::sections().into_iter();
    let defaults = sections.map(|section| section.defaults).chain([mesh]);
    let found: BTreeSet<String> = defaults.flat_map(file_keys).collect();
    let secret = SECRET.iter().map(|(key, _)| *key);
    let known: BTreeSet<String> = secret
        .chain(PUBLIC.iter().copied())
        .map(str::to_owned)
        .collect();
    assert_eq!(found, known);
}

#[test]
fn a_file_that_others_may_read_is_refused_whichever_key_names_it() {
    for keys in [SECRET, OF_FORMATS].concat().chunks(3) {
        std::thread::scope(|scope| {
            for (key, configuration) in keys {
                scope.spawn(move || {
                    let mut mesh = mesh_with(configuration, 0o644);
                    mesh.spawn();
                    mesh.wait_until(key, || {
                        let log = fs::read_to_string(mesh.path("up.log")).unwrap();
                        let message = log
                            .lines()
                            .find(|line| line.contains("others may read or change it (mode 644)"));
                        message.is_some_and(|line| line.contains("secret"))
                    });
                });
            }
        });
    }
}

#[test]
fn a_secret_in_a_configuration_that_others_may_read_is_refused() {
    for (key, configuration) in INLINE {
        let mesh = mesh_with(configuration, 0o600);
        let path = mesh.path("mesh.toml");
        for mode in [0o644, 0o604] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let output = mesh.run(&["up"]);
            let message = stderr(&output);
            assert_eq!(output.status.code(), Some(78), "{message}");
            assert!(
                message.contains(&format!("{key}: secret in a file"))
                    && !message.contains("s3cret"),
                "{message}"
            );
        }
        // The operator may choose the group that reads the file: SlurmUser's, as packages do.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let message = stderr(&mesh.run(&["events"]));
        assert!(!message.contains("secret in a file"), "{message}");
    }
}

#[test]
fn a_file_that_others_may_read_is_refused_whichever_option_names_it() {
    // Every option that names a secret file. `--tls-key` is only copied into a nats-server's configuration, and read by that server.
    let mut options = BTreeSet::new();
    let mut commands = vec![Cli::command()];
    while let Some(command) = commands.pop() {
        let long = command
            .get_arguments()
            .filter_map(|argument| argument.get_long());
        options.extend(
            long.filter(|name| name.ends_with("-file") && *name != "ca-file")
                .map(str::to_owned),
        );
        commands.extend(command.get_subcommands().cloned());
    }
    assert_eq!(
        options,
        BTreeSet::from(["secret-file", "slurm-token-file", "token-file"].map(str::to_owned))
    );
    let mesh = mesh_with("", 0o644);
    let add = ["webhooks", "add", "x"];
    for arguments in [
        &[
            "--url",
            "http://127.0.0.1:1",
            "--token-file",
            "secret",
            "events",
        ][..],
        &[
            &add[..],
            &["https://example.org/", "--secret-file", "secret"],
        ]
        .concat(),
        &[&add[..], &["@secret", "--format", "slack"]].concat(),
        &[
            &["init", "--kubernetes", "-M", "testbed"][..],
            &[
                "--slurmrestd",
                "http://x:6820",
                "--slurm-token-file",
                "secret",
            ],
        ]
        .concat(),
    ] {
        let message = stderr(&mesh.run(arguments));
        assert!(
            message.contains("others may read or change it (mode 644)"),
            "{arguments:?}: {message}"
        );
    }
}

/// Every key that holds a secret or a URL with a login, in all sections.
const ALL: &str = r#"
[mesh]
cluster = "testbed"
[mesh.nats]
url = "nats://mesh:s3cret@127.0.0.1:1"
password = "s3cret"
[mesh.telemetry]
otlp_endpoint = "https://mesh:s3cret@otel.example.org"
[ledger.db]
url = "postgres://mesh:s3cret@127.0.0.1:1/ledger"
reader_url = "postgres://reader:s3cret@127.0.0.1:1/ledger"
[ledger.retention]
url = "postgres://eraser:s3cret@127.0.0.1:1/ledger"
[cost-engine.db]
url = "postgres://mesh:s3cret@127.0.0.1:1/costs"
[exporter.db]
url = "postgres://mesh:s3cret@127.0.0.1:1/exporter"
[workflow-trigger.db]
url = "postgres://mesh:s3cret@127.0.0.1:1/triggers"
[webhook-dispatcher]
secrets_key = "s3cret"
[webhook-dispatcher.db]
url = "postgres://mesh:s3cret@127.0.0.1:1/webhooks"
[webhook-dispatcher.proxy]
url = "http://mesh:s3cret@127.0.0.1:1"
credentials = "mesh:s3cret"
[[webhook-dispatcher.endpoints]]
name = "pipeline"
url = "https://ci:s3cret@ci.example.org/hook"
secret = "s3cret"
headers = { authorization = "s3cret" }
[[webhook-dispatcher.endpoints]]
name = "chat"
url = "https://hooks.slack.com/services/s3cret"
format = "slack"
[[webhook-dispatcher.endpoints]]
name = "teams"
url = "https://prod.example.org/workflows/1?sig=s3cret"
format = { type = "teams" }
[[webhook-dispatcher.endpoints]]
name = "pager"
format = { type = "pagerduty", routing_key = "s3cret" }
"#;

#[test]
fn no_secret_is_printed() {
    fn debug<T: DeserializeOwned + Debug>(config: &ConfigFile, name: &str) -> String {
        format!("{:?}", config.section::<T>(name).unwrap())
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mesh.toml");
    mesh_testkit::write_private(&path, ALL);
    let config = ConfigFile::load(&smesh::services::sections(), Some(&path)).unwrap();
    let printed = config.print().unwrap();
    for text in [
        &printed,
        &debug::<MeshConfig>(&config, "mesh"),
        &debug::<ledger::Config>(&config, "ledger"),
        &debug::<cost_engine::Config>(&config, "cost-engine"),
        &debug::<exporter::config::Config>(&config, "exporter"),
        &debug::<workflow_trigger::config::Config>(&config, "workflow-trigger"),
        &debug::<webhook_dispatcher::Config>(&config, "webhook-dispatcher"),
    ] {
        assert!(!text.contains("s3cret"), "{text}");
    }
    for shown in [
        "https://********@ci.example.org/hook",
        "postgres://********@127.0.0.1:1/costs",
        "name = \"pager\"",
        "secrets_key = \"********\"",
    ] {
        assert!(printed.contains(shown), "{shown:?} is not in {printed}");
    }
}

#[test]
fn every_secret_in_a_file_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mesh.toml");
    let is_secret = |line: &&str| line.contains("s3cret");
    for secret in ALL.lines().filter(is_secret) {
        let alone = ALL
            .lines()
            .filter(|line| !is_secret(line) || *line == secret);
        fs::write(&path, alone.collect::<Vec<_>>().join("\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let config = ConfigFile::load(&smesh::services::sections(), Some(&path)).unwrap();
        let fault = Context::new(config, CancellationToken::new()).err();
        let fault = fault.map(|fault| fault.to_string()).unwrap_or_default();
        let key = secret.split(" = ").next().unwrap();
        assert!(
            fault.contains("secret in a file") && fault.contains(key),
            "{secret}: {fault}"
        );
        assert!(!fault.contains("s3cret"), "{fault}");
    }
}
