//! Archive files that were altered or are missing.

use ledger::adapters::ExportReader;
use ledger::domain::archive::{file_name, name};
use ledger::domain::verify::Fault;
use ledger::{Elsewhere, TrustAnchors, VerifyError, verify_database_with, verify_everything};

use super::Ledger;
use crate::support::{Database, on_both};

on_both!(an_archive_that_was_changed_is_found);

impl Ledger {
    /// Checks that the missing file of the range that ends at `last` is reported, unless it is said
    /// to be elsewhere.
    async fn misses_its_file(&self, last: i64) {
        let name = name(1, last);
        let other = vec![name.replace("0001-", "0002-")];
        for archives in [None, Some(self.archives())] {
            let mut trust = TrustAnchors {
                archives,
                elsewhere: Elsewhere::Names(other.clone()),
                ..TrustAnchors::default()
            };
            let location = self.database.location();
            match verify_database_with(&location, &trust, |_| ()).await {
                Err(VerifyError::FilesMissing { first, names }) => {
                    assert_eq!((first.seq, first.what), (last, Fault::ArchiveFileMissing));
                    assert_eq!(names, std::slice::from_ref(&name));
                }
                other => panic!("{other:?}"),
            }
            for elsewhere in [
                Elsewhere::Names([other.clone(), vec![name.clone()]].concat()),
                Elsewhere::All,
            ] {
                trust.elsewhere = elsewhere;
                let report = verify_everything(&location, &trust, |_| ()).await.unwrap();
                assert_eq!(report.verified.archived, last.unsigned_abs());
                let files = report.classes.iter();
                let mut files = files.filter(|class| class.name == "files of archives");
                let unchecked = files.next().unwrap().unchecked.clone();
                assert!(unchecked.is_some_and(|why| why.starts_with("1 are")));
            }
        }
    }
}

async fn an_archive_that_was_changed_is_found(database: Database) {
    let mut ledger = Ledger::new(database).await;
    ledger.append("alice", 200).await;
    ledger.archive_all().await.unwrap();
    let archive = ledger.is_whole().await.remove(0);
    let file = ledger
        .archives()
        .join(file_name(&archive.file.unwrap().path));
    let whole = std::fs::read(&file).unwrap();

    // A truncated end, a flipped bit, a missing file.
    for cut in [whole.len() / 2, whole.len() - 1] {
        std::fs::write(&file, &whole[..cut]).unwrap();
        let found = ledger.verify(true).await.unwrap_err();
        assert!(
            matches!(&found, VerifyError::Invalid(bad) if bad.what == Fault::ArchiveUnreadable),
            "{found:?}"
        );
    }
    for _ in 0..20 {
        let mut flipped = whole.clone();
        // After the header of RFC 1952, which contains an unused time and name.
        let byte = rand::random_range(10..whole.len());
        flipped[byte] ^= 1 << rand::random_range(0..8);
        std::fs::write(&file, &flipped).unwrap();
        let found = ledger.verify(true).await;
        assert!(matches!(found, Err(VerifyError::Invalid(_))), "byte {byte}");
    }
    // It was not renamed yet.
    let partial = ledger.archives().join("next.partial");
    std::fs::write(&partial, &whole).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(ledger.verify(true).await.unwrap().archived, 0);
    // That of another archive does not count.
    std::fs::write(&partial, &whole[..whole.len() / 2]).unwrap();
    ledger.misses_its_file(200).await;
    // A name that cannot be followed is not one of a missing file.
    std::os::unix::fs::symlink(file.file_name().unwrap(), &file).unwrap();
    let unreadable = ledger.verify(true).await;
    assert!(
        matches!(unreadable, Err(VerifyError::Archive { .. })),
        "{unreadable:?}"
    );
    std::fs::remove_file(&file).unwrap();
    std::fs::remove_file(&partial).unwrap();
    ledger.misses_its_file(200).await;
    // Other content, compressed correctly: the entry is reported.
    std::fs::write(&file, &whole).unwrap();
    let (mut lines, mut line, mut text) =
        (ExportReader::open(&file).unwrap(), Vec::new(), Vec::new());
    while lines.next(&mut line).unwrap() {
        let line = String::from_utf8(line.clone()).unwrap();
        let other = match line.contains("\"seq\":150,") {
            true => line.replace("\"subject\":\"slurm.", "\"subject\":\"slurn."),
            false => line,
        };
        text.extend(other.into_bytes());
    }
    std::fs::write(&file, &text).unwrap();
    match ledger.verify(true).await {
        Err(VerifyError::Invalid(bad)) => {
            assert_eq!((bad.seq, bad.what), (150, Fault::ContentChanged))
        }
        other => panic!("{other:?}"),
    }
    // Without a folder, the file is compared with its signed hash at its recorded path.
    match ledger.verify(false).await {
        Err(VerifyError::Invalid(bad)) => {
            assert_eq!((bad.seq, bad.what), (200, Fault::ArchiveFileDiffers));
        }
        other => panic!("{other:?}"),
    }
    // The same content compressed differently is another file.
    let mut other = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    std::io::copy(
        &mut flate2::read::GzDecoder::new(whole.as_slice()),
        &mut other,
    )
    .unwrap();
    std::fs::write(&file, other.finish().unwrap()).unwrap();
    match ledger.verify(true).await {
        Err(VerifyError::Invalid(bad)) => {
            assert_eq!((bad.seq, bad.what), (200, Fault::ArchiveFileDiffers));
        }
        other => panic!("{other:?}"),
    }
    std::fs::remove_file(&file).unwrap();
    ledger.misses_its_file(200).await;
}
