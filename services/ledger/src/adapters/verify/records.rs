//! What is stored beside the entries and follows from them, or from checkpoints: subtrees and archives.

use std::collections::BTreeMap;

use ledger_format::chain::Hash;
use ledger_format::merkle::Node;
use mesh_db::pool::Connection;
use mesh_db::sql::Sql;

use crate::adapters::proof;
use crate::domain::archive::StoredArchive;
use crate::domain::checkpoint::Checkpoint;
use crate::domain::note::PublicKey;
use crate::domain::verify::{Fault, FirstBad};
use crate::error::Error;

/// Stored subtrees of one query.
const PAGE: i64 = 10_000;

/// The first stored subtree that the entries do not give, or that is missing although a checkpoint counts its entries.
pub async fn subtrees(
    connection: &mut Connection,
    computed: Vec<(Node, Hash)>,
    count: u64,
) -> Result<Option<FirstBad>, Error> {
    let place = |node: Node| (i64::from(node.level), node.index.cast_signed());
    let mut computed: BTreeMap<(i64, i64), Hash> = computed
        .into_iter()
        .map(|(node, hash)| (place(node), hash))
        .collect();
    let signed = Sql::new("SELECT COALESCE(MAX(size), 0) AS size FROM checkpoints WHERE size <= ")
        .bind(count.cast_signed());
    let row = connection
        .link()
        .first(&signed)
        .await
        .map_err(Error::Read)?;
    let signed = row
        .map_or(Ok(0), |row| row.get::<i64>("size"))
        .map_err(Error::Read)?;
    let mut after = (0, -1);
    loop {
        let sql = Sql::new("SELECT level, idx, hash FROM subtrees WHERE level > ")
            .bind(after.0)
            .push(" OR (level = ")
            .bind(after.0)
            .push(" AND idx > ")
            .bind(after.1)
            .push(") ORDER BY level, idx LIMIT ")
            .bind(PAGE);
        let rows = connection.link().rows(&sql).await.map_err(Error::Read)?;
        for row in &rows {
            let (level, idx): (i64, i64) = (
                row.get("level").map_err(Error::Read)?,
                row.get("idx").map_err(Error::Read)?,
            );
            let hash: Vec<u8> = row.get("hash").map_err(Error::Read)?;
            after = (level, idx);
            let fits = match computed.remove(&after) {
                Some(computed) => hash == computed,
                // Entries that came meanwhile may have more.
                None => end(after) > count.cast_signed() && level % 8 == 0,
            };
            if !fits {
                return Ok(Some(differs(after)));
            }
        }
        if rows.len() < PAGE as usize {
            break;
        }
    }
    let missing = computed.into_keys().find(|place| end(*place) <= signed);
    Ok(missing.map(differs))
}

/// The last entry of a subtree.
fn end((level, idx): (i64, i64)) -> i64 {
    let width = u32::try_from(level)
        .ok()
        .and_then(|level| 1i64.checked_shl(level));
    width
        .and_then(|width| width.checked_mul(idx.saturating_add(1)))
        .unwrap_or(i64::MAX)
}

fn differs(place: (i64, i64)) -> FirstBad {
    FirstBad {
        seq: end(place),
        what: Fault::SubtreeDiffers,
    }
}

/// The first range that does not end with a stored checkpoint that its key has signed.
pub async fn archives(
    connection: &mut Connection,
    archives: &[StoredArchive],
) -> Result<Option<FirstBad>, Error> {
    for archive in archives {
        let sql = proof::checkpoints()
            .push(" WHERE size = ")
            .bind(archive.last_seq);
        let rows = connection.link().rows(&sql).await.map_err(Error::Read)?;
        let key: Option<PublicKey> = archive.signed_by.parse().ok();
        let mut signed = false;
        for row in &rows {
            let note: String = row.get("note").map_err(Error::Read)?;
            signed |= Checkpoint::open(&note, key.as_slice()).is_ok();
        }
        if !signed {
            return Ok(Some(FirstBad {
                seq: archive.first_seq,
                what: Fault::ArchiveMisplaced,
            }));
        }
    }
    Ok(None)
}
