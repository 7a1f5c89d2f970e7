//! Verifies records derived from the entries: subtrees and keys.

use std::collections::{BTreeMap, HashSet};

use ledger_format::chain::Hash;
use ledger_format::merkle::Node;
use mesh_db::pool::{Access, Connection, Pool};
use mesh_db::sql::Sql;
use mesh_events::from_timestamp;
use mesh_events::proto::mesh::audit::v1::AuditEntry;
use mesh_events::proto::mesh::audit::v1::audit_entry::Act;
use prost::Message as _;

use crate::adapters::{archives, checkpoint_rows};
use crate::domain::audited::Audited;
use crate::domain::checkpoint::Checkpoint;
use crate::domain::keys::{StoredKey, audit_entries, audit_id};
use crate::domain::verify::{Fault, FirstFault};
use crate::error::Error;

/// Stored subtrees per query.
const PAGE_ENTRIES: i64 = 10_000;

/// Returns the first stored subtree that does not match the entries, or is missing although a
/// checkpoint covers its entries.
pub async fn subtrees(
    connection: &mut Connection,
    computed: Vec<(Node, Hash)>,
    count: u64,
) -> Result<Option<FirstFault>, Error> {
    let place = |node: Node| (i64::from(node.level), node.index.cast_signed());
    let mut computed: BTreeMap<(i64, i64), Hash> = computed
        .into_iter()
        .map(|(node, hash)| (place(node), hash))
        .collect();
    let signed = Sql::new("SELECT COALESCE(MAX(size), 0) AS size FROM checkpoints WHERE size <= ")
        .bind(count.cast_signed());
    let row = connection
        .conn()
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
            .bind(PAGE_ENTRIES);
        let rows = connection.conn().rows(&sql).await.map_err(Error::Read)?;
        for row in &rows {
            let (level, idx): (i64, i64) = (
                row.get("level").map_err(Error::Read)?,
                row.get("idx").map_err(Error::Read)?,
            );
            let hash: Vec<u8> = row.get("hash").map_err(Error::Read)?;
            after = (level, idx);
            let fits = match computed.remove(&after) {
                Some(computed) => hash == computed,
                // Entries appended meanwhile may have completed it.
                None => end(after) > count.cast_signed() && level % 8 == 0,
            };
            if !fits {
                return Ok(Some(differs(after)));
            }
        }
        if rows.len() < PAGE_ENTRIES as usize {
            break;
        }
    }
    let missing = computed.into_keys().find(|place| end(*place) <= signed);
    Ok(missing.map(differs))
}

/// Returns the last entry of a subtree.
fn end((level, idx): (i64, i64)) -> i64 {
    let width = u32::try_from(level)
        .ok()
        .and_then(|level| 1i64.checked_shl(level));
    width
        .and_then(|width| width.checked_mul(idx.saturating_add(1)))
        .unwrap_or(i64::MAX)
}

fn differs(place: (i64, i64)) -> FirstFault {
    FirstFault {
        seq: end(place),
        what: Fault::SubtreeDiffers,
    }
}

/// Finds the first key whose row names another caller or time than its audit entry, or a caller
/// without an audit entry. Otherwise returns the audit entries whose content was removed.
pub async fn keys(connection: &mut Connection) -> Result<Result<Vec<i64>, FirstFault>, Error> {
    let check = async {
        let mut snapshot = connection.begin(Access::Snapshot).await?;
        let keys = snapshot.conn().rows(&checkpoint_rows::keys()).await?;
        let keys: Vec<StoredKey> = keys
            .iter()
            .map(checkpoint_rows::key)
            .collect::<Result<_, _>>()?;
        // The ledger makes its first key itself. Earlier versions took the caller from the audit
        // when they resumed a ledger whose key was replaced before its first entry.
        if let Some(first) = keys.first().filter(|first| !first.made_by.is_empty()) {
            let audited = archives::audited(&mut snapshot, &audit_id(&first.vkey)).await?;
            if !audited.is_some_and(|audited| names_maker(&audited, first)) {
                return Ok(Err(changed(first)));
            }
        }
        let mut removed = Vec::new();
        for pair in keys.windows(2) {
            let [_, key] = pair else { continue };
            let audited = archives::audited(&mut snapshot, &audit_id(&key.vkey)).await?;
            let entry = |cluster: &str| audit_entries(pair, cluster).pop().unwrap_or_default();
            let fits = match &audited {
                Some(audited) => audited.is(entry),
                // Earlier versions replaced keys before the first entry with only an audit entry,
                // because there was nothing for both keys to sign.
                None => key.from_size > 0,
            };
            if !fits {
                return Ok(Err(changed(key)));
            }
            removed.extend(audited.as_ref().and_then(Audited::removed));
        }
        snapshot.commit().await?;
        Ok(Ok(removed))
    };
    check.await.map_err(Error::Read)
}

const fn changed(key: &StoredKey) -> FirstFault {
    FirstFault {
        seq: key.from_size,
        what: Fault::KeysChanged,
    }
}

/// True if the audit entry says that this caller made the key at this time.
fn names_maker(audited: &Audited, key: &StoredKey) -> bool {
    let body = audited.body.as_deref().unwrap_or_default();
    let Ok(entry) = AuditEntry::decode(body) else {
        return false;
    };
    let at = entry.at.as_ref().and_then(from_timestamp);
    let made_at = at.map(|at| at.timestamp_micros());
    matches!(&entry.act, Some(Act::Key(made)) if made.vkey == key.vkey && made.made_by == key.made_by)
        && made_at == Some(key.made_at)
}

/// Returns the size of the smallest of these checkpoints that is not stored.
pub async fn unknown_note(pool: &Pool, notes: Vec<String>) -> Result<Option<u64>, Error> {
    let stored = Sql::new("SELECT note FROM checkpoints WHERE note").any_of(notes.clone());
    let rows = pool.rows(&stored).await.map_err(Error::Read)?;
    let stored: HashSet<String> = rows
        .iter()
        .map(|row| row.get("note"))
        .collect::<Result<_, _>>()
        .map_err(Error::Read)?;
    let unknown = notes.iter().filter(|note| !stored.contains(*note));
    // A note that is not a checkpoint is ignored, because it proves nothing.
    Ok(unknown
        .filter_map(|note| Checkpoint::unverified(note).ok())
        .map(|checkpoint| checkpoint.size)
        .min())
}
