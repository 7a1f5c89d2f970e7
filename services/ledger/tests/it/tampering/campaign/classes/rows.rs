//! Bits, rows and histories.

use super::{Act, Class, class};

pub const CLASSES: &[Class] = &[
    // Bits.
    class("a bit of entries", Act::Flip("entries")),
    class("a bit of payloads", Act::Flip("payloads")),
    class("a bit of the head", Act::Flip("head")),
    class("a bit of event_index", Act::Flip("event_index")),
    class("a bit of event_nodes", Act::Flip("event_nodes")),
    class("a bit of checkpoints", Act::Flip("checkpoints")),
    class("a bit of checkpoint_keys", Act::Flip("checkpoint_keys")),
    class("a bit of subtrees", Act::Flip("subtrees")),
    class("a bit of archives", Act::Flip("archives")),
    class(
        "a body cut short",
        Act::RowsAt(&["UPDATE payloads SET body = substr(body, 2) WHERE seq = {at}"]),
    ),
    class(
        "an id made longer",
        Act::RowsAt(&["UPDATE entries SET id = id || 'x' WHERE seq = {at}"]),
    ),
    class(
        "a row for queries handed to another user",
        Act::Rows(&["UPDATE event_index SET user_name = 'mallory' WHERE seq = {at}"]),
    ),
    class(
        "a column for queries emptied",
        Act::Rows(&["UPDATE event_index SET account = NULL, run = 'x' WHERE seq = {at}"]),
    ),
    // Deletes.
    class(
        "an entry and its content deleted",
        Act::RowsAt(&[
            "DELETE FROM entries WHERE seq = {at}",
            "DELETE FROM payloads WHERE seq = {at}",
        ]),
    ),
    class(
        "an entry deleted, its content left",
        Act::RowsAt(&["DELETE FROM entries WHERE seq = {at}"]),
    ),
    class(
        "the content of an entry deleted",
        Act::RowsAt(&["DELETE FROM payloads WHERE seq = {at}"]),
    ),
    class(
        "content and columns of an entry deleted",
        Act::RowsAt(&[
            "DELETE FROM event_nodes WHERE seq = {at}",
            "DELETE FROM event_index WHERE seq = {at}",
            "DELETE FROM payloads WHERE seq = {at}",
        ]),
    ),
    class(
        "a row for queries deleted",
        Act::Rows(&["DELETE FROM event_index WHERE seq = {at}"]),
    ),
    class(
        "nodes of an entry deleted",
        Act::Rows(&["DELETE FROM event_nodes WHERE seq = (SELECT MAX(seq) FROM event_nodes)"]),
    ),
    class("the head deleted", Act::Rows(&["DELETE FROM head"])),
    class(
        "a checkpoint deleted",
        Act::Rows(&["DELETE FROM checkpoints WHERE number = {cp}"]),
    ),
    class(
        "a checkpoint deleted and the others numbered anew",
        Act::Rows(&[
            "DELETE FROM checkpoints WHERE number = 4",
            "UPDATE checkpoints SET number = 4 WHERE number = 5",
            "UPDATE checkpoints SET number = 5 WHERE number = 6",
        ]),
    ),
    class(
        "all checkpoints deleted",
        Act::Rows(&["DELETE FROM checkpoints"]),
    ),
    class(
        "all checkpoints and keys deleted",
        Act::Rows(&["DELETE FROM checkpoints", "DELETE FROM checkpoint_keys"]),
    ),
    class(
        "all checkpoints, keys and archives deleted",
        Act::Rows(&[
            "DELETE FROM checkpoints",
            "DELETE FROM checkpoint_keys",
            "DELETE FROM archives",
        ]),
    ),
    class(
        "a key deleted",
        Act::Rows(&["DELETE FROM checkpoint_keys WHERE number = 1 + {cp} % 2"]),
    ),
    class(
        "the row of an archive deleted",
        Act::Rows(&["DELETE FROM archives WHERE number = {archive}"]),
    ),
    class("a subtree deleted", Act::Rows(&["DELETE FROM subtrees"])),
    // Swaps.
    class("two entries swapped", Act::Swap { table: "entries" }),
    class("the content of two entries swapped", Act::SwapBodies),
    class(
        "the rows for queries of two entries swapped",
        Act::Swap {
            table: "event_index",
        },
    ),
    class(
        "the nodes of two entries moved",
        Act::Rows(&["UPDATE event_nodes SET seq = seq + 1000 WHERE seq = {job}"]),
    ),
    class(
        "notes of two checkpoints swapped",
        Act::Rows(&[
            "UPDATE checkpoints SET number = 100 WHERE number = 1",
            "UPDATE checkpoints SET number = 1 WHERE number = 2",
            "UPDATE checkpoints SET number = 2 WHERE number = 100",
        ]),
    ),
    // Inserts.
    class(
        "an entry added behind the last",
        Act::Rows(&["INSERT INTO entries VALUES ({end}, 'x', zeroblob(32), zeroblob(32))"]),
    ),
    class(
        "an entry added before the first",
        Act::Rows(&["INSERT INTO entries VALUES (0, 'x', zeroblob(32), zeroblob(32))"]),
    ),
    class(
        "content that no entry has",
        Act::Rows(&[
            "INSERT INTO payloads (seq, cluster, subject, body, recorded_at) VALUES (1000 + {at}, 'c', 's', x'00', 1)",
        ]),
    ),
    class(
        "a row for queries that no entry has",
        Act::Rows(&[
            "INSERT INTO event_index (seq, cluster, category, type, occurred_at, observed_at, recorded_at) VALUES (1000 + {at}, 'c', 'job', 'job.started', 1, 1, 1)",
        ]),
    ),
    class(
        "a node that an entry does not name",
        Act::Rows(&["INSERT INTO event_nodes (seq, block) VALUES ({at}, 'mine')"]),
    ),
    class(
        "nodes that no entry has",
        Act::Rows(&["INSERT INTO event_nodes (seq, block) VALUES (-{at}, 'mine')"]),
    ),
    class("a checkpoint by somebody else", Act::ForeignCheckpoint),
    class("a key that nobody handed over to", Act::ForgedKey),
    class(
        "a subtree of no level that is stored",
        Act::Rows(&["INSERT INTO subtrees (level, idx, hash) VALUES (3, {at}, zeroblob(32))"]),
    ),
    // Cuts and other histories.
    class(
        "the tail cut off",
        Act::RowsAt(&[
            "DELETE FROM entries WHERE seq >= {at}",
            "DELETE FROM payloads WHERE seq >= {at}",
        ]),
    ),
    class(
        "the tail cut off, with head, checkpoints and columns",
        Act::CutWithCheckpoints,
    ),
    class("an entry taken out and the others moved up", Act::ShiftBack),
    class(
        "leaves, chain and head computed again",
        Act::Rewrite { sign: false },
    ),
    class(
        "the same, with checkpoints by another key",
        Act::Rewrite { sign: true },
    ),
];
