//! Archives, their files, keys, and the audit entries that retention keeps.

use super::{Act, Class, Note, class};

pub const CLASSES: &[Class] = &[
    class(
        "content destroyed and noted as erased",
        Act::ForgedArchive(Note::None),
    ),
    class(
        "the same, signed by a stranger",
        Act::ForgedArchive(Note::Foreign),
    ),
    class(
        "the same, signed by a key that was replaced",
        Act::ForgedArchive(Note::OfReplacedKey),
    ),
    class(
        "the same, with the signed note of another range",
        Act::ForgedArchive(Note::OfAnotherRange),
    ),
    class(
        "a signed archive made one without a note",
        Act::Rows(&["UPDATE archives SET note = NULL, made_by = 'x' WHERE number = {archive}"]),
    ),
    class(
        "who archived, in a row made one of an earlier version",
        Act::Rows(&[
            "UPDATE archives SET note = NULL, ids = NULL, made_by = 'mallory', made_at = 1 WHERE number = {archive}",
        ]),
    ),
    class(
        "who archived, and its audit entry destroyed",
        Act::Rows(&[
            "UPDATE archives SET note = NULL, ids = NULL, made_by = 'mallory', made_at = 1 WHERE number = {audit} - 256",
            "DELETE FROM event_index WHERE seq = {audit}",
            "DELETE FROM payloads WHERE seq = {audit}",
        ]),
    ),
    class(
        "the row of an archive made one of an earlier version",
        Act::Rows(&["UPDATE archives SET note = NULL, ids = NULL WHERE number = 2 + {cp} % 2"]),
    ),
    class(
        "who replaced a key",
        Act::Rows(&[
            "UPDATE checkpoint_keys SET made_by = 'mallory', made_at = 1 WHERE number = 2",
        ]),
    ),
    class(
        "who replaced a key, and its audit entry destroyed",
        Act::Rows(&[
            "UPDATE checkpoint_keys SET made_by = 'mallory', made_at = 1 WHERE number = 2",
            "DELETE FROM event_index WHERE seq = 261",
            "DELETE FROM payloads WHERE seq = 261",
        ]),
    ),
    class(
        "a kept audit entry destroyed",
        Act::Rows(&[
            "DELETE FROM event_index WHERE seq = {audit}",
            "DELETE FROM payloads WHERE seq = {audit}",
        ]),
    ),
    class(
        "content of a kept audit entry altered",
        Act::Rows(&["UPDATE payloads SET body = x'00' WHERE seq = {audit}"]),
    ),
    class("the file of an archive altered", Act::ArchiveFile),
    class("the file of an archive deleted", Act::DeletedArchiveFile),
    class(
        "the place of a file, in a row made one of an earlier version",
        Act::Rows(&[
            "UPDATE archives SET note = NULL, ids = NULL, path = '/mallory' || path WHERE number = 1",
        ]),
    ),
    class(
        "the length of a file, in a row made one of an earlier version",
        Act::Rows(&[
            "UPDATE archives SET note = NULL, ids = NULL, bytes = bytes + {at} WHERE number = 1",
        ]),
    ),
];
