//! The report of a closed period in its audit entry, compressed, from which a lost database is restored.

use std::io::{Read as _, Write as _};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

/// Largest compressed report. NATS takes messages of 1 MiB.
const MAX_BYTES: usize = 512 << 10;
/// Largest report, against a damaged entry.
const MAX_REPORT_BYTES: u64 = 256 << 20;

/// The compressed report. Empty if it is too large: then only the SHA-256 is recorded.
pub(crate) fn compress(report: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    let written = encoder.write_all(report.as_bytes());
    let compressed = written.and_then(|()| encoder.finish()).unwrap_or_default();
    if compressed.len() > MAX_BYTES {
        tracing::warn!(
            bytes = compressed.len(),
            "report of a closed period is too large for the audit: it is not restored with a lost database"
        );
        return Vec::new();
    }
    compressed
}

/// The report. `None` if there is none, or it is damaged.
pub(crate) fn decompress(compressed: &[u8]) -> Option<String> {
    let mut report = String::new();
    let mut decoder = GzDecoder::new(compressed).take(MAX_REPORT_BYTES);
    decoder.read_to_string(&mut report).ok()?;
    Some(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_comes_back_byte_for_byte_unless_it_is_too_large() {
        let report = "{\"rows\":[\"ä\"]}".repeat(10_000);
        let compressed = compress(&report);
        assert!(compressed.len() < 10_000);
        assert_eq!(decompress(&compressed), Some(report));
        assert_eq!(decompress(&[]), None);
        assert_eq!(decompress(&compressed[..compressed.len() - 9]), None);
        // Digits of a sequence that does not repeat.
        let mut number = 1_u64;
        let random: String = (0..200_000)
            .map(|_| {
                number = number
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                format!("{:08x}", number >> 32)
            })
            .collect();
        assert_eq!(compress(&random), Vec::<u8>::new());
    }
}
