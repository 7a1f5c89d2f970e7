use std::io::Write as _;

use super::*;

fn load(text: &str) -> (tempfile::NamedTempFile, Result<ConfigFile, ConfigError>) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    let config = ConfigFile::load(&[], Some(file.path()));
    (file, config)
}

fn mesh(text: &str) -> Result<MeshConfig, String> {
    let (_file, config) = load(text);
    config
        .and_then(|config| config.section("mesh"))
        .map_err(|error| error.to_string())
}

#[test]
fn the_file_overrides_the_defaults() {
    let mesh = mesh("[mesh]\ncluster = \"c1\"\n[mesh.nats]\nurl = \"nats://h:1\"").unwrap();
    assert_eq!(
        (
            mesh.cluster.as_str(),
            mesh.nats.url.as_str(),
            mesh.nats.replicas
        ),
        ("c1", "nats://h:1", 1)
    );
}

#[test]
fn an_unknown_key_is_named() {
    let error = mesh("[mesh]\nclutser = \"c1\"").unwrap_err();
    assert!(error.contains("[mesh] clutser: unknown"), "{error}");
    let error = mesh("[mesh.api]\nlisten = 5").unwrap_err();
    assert!(error.contains("[mesh] api.listen: invalid type"), "{error}");
}

#[test]
fn old_keys_of_all_sections_are_refused_with_their_new_names() {
    let service = |name, renamed_keys| ServiceSection {
        name,
        defaults: "[shop]\n[shop.hours]\nopen = 8\n[mill]\nstones = 2\n",
        renamed_keys,
        live_keys: &[],
        shown: |_| unreachable!(),
    };
    let services = [
        service(
            "shop",
            &[
                ("opens_at", "hours.open"),
                ("doors[].wide", "doors[].size.width"),
            ],
        ),
        service("mill", &[("stone_count", "stones")]),
    ];
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(
        b"[shop]\nopens_at = 9\n[[shop.doors]]\nname = 'front'\n[[shop.doors]]\nwide = 90\n[mill]\nstone_count = 3\n",
    )
    .unwrap();
    let config = ConfigFile::load(&services, Some(file.path())).unwrap();
    let expected = format!(
        "configuration {}: [shop] opens_at: renamed to hours.open; [shop] doors[1].wide: renamed to doors[1].size.width; \
         [mill] stone_count: renamed to stones",
        file.path().display()
    );
    for section in ["shop", "mill"] {
        let error = config.section::<toml::Table>(section).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
    // Other sections can still be read.
    config.section::<MeshConfig>("mesh").unwrap();
}

#[test]
fn limits_of_connections_and_proxies_are_checked() {
    let api = mesh("[mesh.api]\ntrusted_proxies = ['10.0.0.1', '2001:db8::/32']").unwrap();
    assert_eq!(api.api.trusted_proxies.len(), 2);
    assert_eq!(api.api.faults(), [""; 0]);
    let error = mesh("[mesh.api]\ntrusted_proxies = ['proxy']").unwrap_err();
    assert!(error.contains("[mesh] api.trusted_proxies"), "{error}");
    assert!(error.contains("\"proxy\" is not an address"), "{error}");
    for (key, value) in [
        ("max_connections", "0"),
        ("max_connections_per_client", "0"),
        ("header_timeout", "'0s'"),
        ("idle_timeout", "'2h'"),
        ("stall_timeout", "'0s'"),
    ] {
        let faults = mesh(&format!("[mesh.api]\n{key} = {value}")).unwrap();
        let faults = faults.api.faults();
        assert!(
            faults[0].starts_with(&format!("mesh.api.{key}:")),
            "{faults:?}"
        );
    }
}

#[test]
fn a_file_that_is_not_toml_is_refused() {
    let (file, config) = load("[mesh\n");
    let error = config.err().unwrap().to_string();
    assert!(error.contains(file.path().to_str().unwrap()), "{error}");
}

#[test]
fn secrets_are_masked() {
    let (_file, config) = load(
        r#"
        [mesh]
        cluster = "c1"
        [mesh.nats]
        url = "nats://mesh:hun,ter1@n1:4222,tls://hunter2@n2:4222"
        password = "hunter3"
        [mesh.telemetry]
        otlp_endpoint = "https://me:hun@ter4@otel.example.org/v1?a=b@c"
        [[mesh.api.tokens]]
        name = "portal"
        role = "admin"
        sha256 = "hunter5"
        "#,
    );
    let config = config.unwrap();
    let section: MeshConfig = config.section("mesh").unwrap();
    let (printed, debug) = (config.print().unwrap(), format!("{section:?}"));
    for text in [&printed, &debug] {
        for secret in ["hunter2", "hunter3", "ter1", "ter4"] {
            assert!(!text.contains(secret), "{secret} is in {text}");
        }
        for masked in [
            "nats://********@n1:4222,tls://********@n2:4222",
            "https://********@otel.example.org/v1?a=b@c",
        ] {
            assert!(text.contains(masked), "{masked:?} is not in {text}");
        }
    }
    assert!(printed.contains("password = \"********\""), "{printed}");
    assert!(!printed.contains("hunter5"), "{printed}");
}

#[test]
fn secrets_in_a_file_are_found_by_the_types_of_their_keys() {
    for (text, expected) in [
        (
            "[ledger.db]\nurl = 'postgres://mesh:s@h/l'",
            "ledger.db.url",
        ),
        ("[ledger.db]\nurl = 'postgres://mesh@h/l'", ""),
        ("[mesh.nats]\nurl = 'nats://token@h:4222'", "mesh.nats.url"),
        ("[mesh.nats]\nurl = 'nats://a:1,nats://b:1'", ""),
        ("[mesh.nats]\npassword = 's'", "mesh.nats.password"),
        ("[mesh.nats]\npassword = ''", ""),
        (
            "[[mesh.api.tokens]]\nname = 'n'\nrole = 'admin'\nsha256 = 'abc'",
            "",
        ),
    ] {
        let (file, config) = load(&format!("{text}\n[mesh]\ncluster = 'c1'\n"));
        let public = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        std::fs::set_permissions(file.path(), public).unwrap();
        let fault = config.unwrap().exposed_secrets().unwrap_or_default();
        let key = fault.split(": ").next().unwrap();
        assert_eq!(key, expected, "{text}");
    }
}
