//! Certificates that end soon. What they protect stops at once when they end: the API, or the connection to NATS.

use std::path::{Path, PathBuf};

use chrono::{DateTime, NaiveDateTime, TimeDelta, Utc};
use mesh_runtime::Context;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::{CheckResult, Finding};

/// A certificate that ends earlier is a warning.
const SOON: TimeDelta = TimeDelta::days(30);

/// Checks the certificates that the configuration names.
pub(super) fn all(context: &Context) -> Vec<Finding> {
    let (api, nats) = (&context.mesh.api, &context.mesh.nats);
    let section = context.section::<toml::Table>("webhook-dispatcher");
    let receivers = section
        .ok()
        .and_then(|table| Some(context.relative(Path::new(table.get("ca_file")?.as_str()?))));
    let files: [(&str, Option<PathBuf>); 4] = [
        ("mesh.api.cert_file", Some(api.cert_file.clone())),
        ("mesh.nats.cert_file", nats.cert_file.clone()),
        ("mesh.nats.ca_file", nats.ca_file.clone()),
        ("webhook-dispatcher.ca_file", receivers),
    ];
    files
        .into_iter()
        .filter_map(|(key, file)| Some((key, file.filter(|file| !file.as_os_str().is_empty())?)))
        .filter(|(_, file)| !file.is_dir())
        .map(|(key, file)| check(key, &file, Utc::now()))
        .collect()
}

fn check(key: &str, file: &Path, now: DateTime<Utc>) -> Finding {
    let finding = |grade, found: String, fix: &str| Finding::new("certificates", grade, found, fix);
    let name = format!("{key} {}", file.display());
    let text = match std::fs::read(file) {
        Ok(text) => text,
        Err(error) => {
            let fix = "run doctor as the user of the services or root, or correct the path";
            return finding(CheckResult::Unknown, format!("{name}: {error}"), fix);
        }
    };
    let ends: Option<Vec<DateTime<Utc>>> = CertificateDer::pem_slice_iter(&text)
        .map(|certificate| not_after(certificate.ok()?.as_ref()))
        .collect();
    let Some(end) = ends.and_then(|ends| ends.into_iter().min()) else {
        let fix = "PEM is needed, -----BEGIN CERTIFICATE-----";
        return finding(CheckResult::Bad, format!("{name}: not a certificate"), fix);
    };
    judge(&name, end, now)
}

/// Checks the certificate (DER) that a server has shown.
pub(super) fn shown(name: &str, certificate: &[u8]) -> Finding {
    match not_after(certificate) {
        Some(end) => judge(name, end, Utc::now()),
        None => {
            let found = format!("{name}: the end of its certificate cannot be read");
            Finding::new("certificates", CheckResult::Unknown, found, "")
        }
    }
}

fn judge(name: &str, end: DateTime<Utc>, now: DateTime<Utc>) -> Finding {
    let finding = |grade, found: String, fix: &str| Finding::new("certificates", grade, found, fix);
    let day = end.format("%Y-%m-%d %H:%M UTC");
    let renew = "renew it; the new file is used without a restart";
    if end <= now {
        finding(CheckResult::Bad, format!("{name} expired on {day}"), renew)
    } else if end - now < SOON {
        let days = (end - now).num_days();
        finding(
            CheckResult::Warning,
            format!("{name} expires on {day}, in {days} days"),
            renew,
        )
    } else {
        finding(CheckResult::Good, format!("{name} expires on {day}"), "")
    }
}

/// The end of a certificate's validity (RFC 5280, 4.1): the second time in the element `validity` of `tbsCertificate`.
fn not_after(certificate: &[u8]) -> Option<DateTime<Utc>> {
    const SEQUENCE: u8 = 0x30;
    const VERSION: u8 = 0xa0;
    let (tag, certificate, _) = element(certificate)?;
    let (signed_tag, mut rest, _) = element(certificate)?;
    if (tag, signed_tag) != (SEQUENCE, SEQUENCE) {
        return None;
    }
    if *rest.first()? == VERSION {
        rest = element(rest)?.2;
    }
    // serialNumber, signature, issuer
    for _ in 0..3 {
        rest = element(rest)?.2;
    }
    let (_, validity, _) = element(rest)?;
    let (_, _, after) = element(validity)?;
    let (kind, text, _) = element(after)?;
    time(kind, std::str::from_utf8(text).ok()?)
}

/// A `UTCTime` or `GeneralizedTime`. Both end with `Z` in certificates.
fn time(tag: u8, text: &str) -> Option<DateTime<Utc>> {
    let text = match tag {
        // Years of two digits: up to 49 they are of this century.
        0x17 if text.get(..2)?.parse::<u8>().ok()? < 50 => format!("20{text}"),
        0x17 => format!("19{text}"),
        0x18 => text.to_owned(),
        _ => return None,
    };
    let time = NaiveDateTime::parse_from_str(&text, "%Y%m%d%H%M%SZ").ok()?;
    Some(time.and_utc())
}

/// Splits DER into the tag and content of its first element, and the rest.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        _ => {
            let (length, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            if length.len() > 4 {
                return None;
            }
            let length = length.iter();
            (
                length.fold(0, |length, byte| length << 8 | usize::from(*byte)),
                rest,
            )
        }
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a certificate that ends at a time.
    fn certificate(file: &Path, year: i32, month: u8, day: u8) {
        let mut params = rcgen::CertificateParams::new(vec!["mesh.example.org".into()]).unwrap();
        params.not_after = rcgen::date_time_ymd(year, month, day);
        let key = rcgen::KeyPair::generate().unwrap();
        std::fs::write(file, params.self_signed(&key).unwrap().pem()).unwrap();
    }

    #[test]
    fn the_end_of_a_certificate_is_judged() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("api.pem");
        let now = "2026-11-01T00:00:00Z".parse().unwrap();
        let judged = || check("mesh.api.cert_file", &file, now);
        for (year, month, day, grade, text) in [
            (
                2026,
                12,
                2,
                CheckResult::Good,
                "expires on 2026-12-02 00:00 UTC",
            ),
            (2026, 11, 30, CheckResult::Warning, "in 29 days"),
            (2026, 10, 31, CheckResult::Bad, "expired on 2026-10-31"),
            (2051, 1, 1, CheckResult::Good, "expires on 2051-01-01"),
        ] {
            certificate(&file, year, month, day);
            let finding = judged();
            assert_eq!(finding.grade, grade, "{finding:?}");
            assert!(finding.found.contains(text), "{finding:?}");
            assert!(finding.found.contains("api.pem"), "{finding:?}");
        }
        // Of a chain, the first end counts.
        let chain = std::fs::read_to_string(&file).unwrap();
        certificate(&file, 2026, 11, 2);
        let both = chain + &std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, both).unwrap();
        assert_eq!(judged().grade, CheckResult::Warning);

        std::fs::write(&file, "nonsense").unwrap();
        assert_eq!(judged().grade, CheckResult::Bad);
        std::fs::remove_file(&file).unwrap();
        assert_eq!(judged().grade, CheckResult::Unknown);
    }

    #[test]
    fn cut_der_is_no_certificate() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("api.pem");
        certificate(&file, 2026, 12, 2);
        let text = std::fs::read(&file).unwrap();
        let der = CertificateDer::from_pem_slice(&text).unwrap();
        assert!(not_after(&der).is_some());
        for length in 0..120 {
            assert_eq!(not_after(&der[..length]), None);
        }
    }
}
