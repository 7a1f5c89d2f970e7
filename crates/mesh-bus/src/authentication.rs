//! Authentication to NATS, and verification of the server's certificate. Every connection reads the files again, so a rotated password, key
//! or certificate takes effect without a restart. An unreadable file is reported at start.

use std::io;
use std::path::Path;

use async_nats::{Auth, AuthError, ConnectOptions};
use nkeys::KeyPair;
use secrecy::ExposeSecret as _;

use crate::{Config, Error};

/// Labels of the two sections of a credentials file, as `nsc` writes them.
const JWT: &str = "NATS USER JWT";
const SEED: &str = "USER NKEY SEED";

/// Connect options of a configuration.
///
/// # Errors
/// If a configured file cannot be used; the error names key and file.
pub(crate) fn options(config: &Config) -> Result<ConnectOptions, Error> {
    // Read now, so that a fault is reported at start and not in the log of a connection that never succeeds.
    login(config, b"")?;
    for (key, path) in [
        ("ca_file", &config.ca_file),
        ("cert_file", &config.cert_file),
    ] {
        if let Some(path) = path {
            certificates(path).map_err(|error| unusable(key, path, error))?;
        }
    }
    // The address may carry user and password; the options must not overwrite them.
    let own =
        config.user.is_some() || config.credentials_file.is_some() || config.nkey_file.is_some();
    let mut options = match own {
        true => {
            let config = config.clone();
            ConnectOptions::with_auth_callback(move |nonce| {
                let auth = login(&config, &nonce);
                async move { auth.map_err(AuthError::new) }
            })
        }
        false => ConnectOptions::new(),
    };
    if let Some(path) = &config.ca_file {
        // A configured authority implies that TLS is required.
        options = options
            .add_root_certificates(path.clone())
            .require_tls(true);
    }
    if let (Some(cert), Some(key)) = (&config.cert_file, &config.key_file) {
        secret_file::read(key).map_err(|error| unusable("key_file", key, error))?;
        options = options
            .add_client_certificate(cert.clone(), key.clone())
            .require_tls(true);
    }
    Ok(options)
}

/// The login to send to a server that has sent this nonce.
fn login(config: &Config, nonce: &[u8]) -> Result<Auth, Error> {
    let mut auth = Auth::new();
    if let Some(path) = &config.nkey_file {
        let fault = |error| unusable("nkey_file", path, error);
        let seed = secret_file::read(path).map_err(fault)?;
        let key = key_pair(seed.trim()).map_err(fault)?;
        auth.signature = Some(sign(&key, nonce).map_err(fault)?);
        auth.nkey = Some(key.public_key());
    } else if let Some(path) = &config.credentials_file {
        let fault = |error| unusable("credentials_file", path, error);
        let text = secret_file::read(path).map_err(fault)?;
        let (jwt, key) = credentials(&text).map_err(fault)?;
        auth.signature = Some(sign(&key, nonce).map_err(fault)?);
        auth.jwt = Some(jwt);
    } else if let Some(user) = &config.user {
        auth.username = Some(user.clone());
        auth.password = Some(password(config)?);
    }
    Ok(auth)
}

fn password(config: &Config) -> Result<String, Error> {
    if let Some(path) = &config.password_file {
        let text =
            secret_file::read(path).map_err(|error| unusable("password_file", path, error))?;
        return Ok(text.trim_end().to_owned());
    }
    let password = config.password.as_ref();
    Ok(password.map_or_else(String::new, |password| password.expose_secret().to_owned()))
}

fn credentials(text: &str) -> io::Result<(String, KeyPair)> {
    let section = |name: &str| {
        let begin = format!("BEGIN {name}-----");
        let (_, rest) = text.split_once(&begin)?;
        let line = rest.lines().map(str::trim).find(|line| !line.is_empty())?;
        Some(line.to_owned())
    };
    match (section(JWT), section(SEED)) {
        (Some(jwt), Some(seed)) => Ok((jwt, key_pair(&seed)?)),
        _ => Err(invalid(
            "not a credentials file with a user JWT and a seed, as `nsc generate creds` writes it",
        )),
    }
}

/// No error message contains the seed.
fn key_pair(seed: &str) -> io::Result<KeyPair> {
    KeyPair::from_seed(seed).map_err(|_| {
        invalid("not an NKey seed of a user, which starts with SU; `nsc generate nkey --user` and `smesh nats config` create one")
    })
}

fn sign(key: &KeyPair, nonce: &[u8]) -> io::Result<Vec<u8>> {
    key.sign(nonce).map_err(io::Error::other)
}

fn certificates(path: &Path) -> io::Result<()> {
    let text = std::fs::read_to_string(path)?;
    match text.contains("-----BEGIN CERTIFICATE-----") {
        true => Ok(()),
        false => Err(invalid(
            "no certificate in PEM format (-----BEGIN CERTIFICATE-----)",
        )),
    }
}

fn invalid(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

fn unusable(key: &'static str, path: &Path, source: io::Error) -> Error {
    Error::File {
        key,
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jwt_and_seed_are_found_in_a_credentials_file() {
        let key = KeyPair::new_user();
        let text = format!(
            "-----BEGIN NATS USER JWT-----\neyJ0.eyJq.c2ln\n------END NATS USER JWT------\n\n\
             ************************* IMPORTANT *************************\n\
             -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
            key.seed().unwrap()
        );
        let (jwt, found) = credentials(&text).unwrap();
        assert_eq!(
            (jwt.as_str(), found.public_key()),
            ("eyJ0.eyJq.c2ln", key.public_key())
        );
        for broken in [
            "",
            "-----BEGIN NATS USER JWT-----\n",
            &text.replace("SU", "XX"),
        ] {
            assert!(credentials(broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_used_is_named_with_its_key_and_not_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nats.seed");
        std::fs::write(&path, "hunter2").unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .unwrap();
        for (key, config) in [
            (
                "nkey_file",
                Config {
                    nkey_file: Some(path.clone()),
                    ..Config::default()
                },
            ),
            (
                "credentials_file",
                Config {
                    credentials_file: Some(path.clone()),
                    ..Config::default()
                },
            ),
            (
                "ca_file",
                Config {
                    ca_file: Some(path.clone()),
                    ..Config::default()
                },
            ),
            (
                "ca_file",
                Config {
                    ca_file: Some(folder.path().join("none")),
                    ..Config::default()
                },
            ),
        ] {
            let error = options(&config).err().unwrap();
            let message = format!("{error} {:?}", std::error::Error::source(&error));
            assert!(message.contains(&format!("mesh.nats.{key}")), "{message}");
            assert!(
                message.contains(folder.path().to_str().unwrap()),
                "{message}"
            );
            assert!(!message.contains("hunter2"), "{message}");
        }
    }
}
