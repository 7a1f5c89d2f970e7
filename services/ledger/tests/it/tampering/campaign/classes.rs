//! All classes of tampering.

mod indexes;
mod records;
mod rows;
mod schema;

use super::acts::Done;
use crate::tampering::Victim;

/// A class of tampering.
pub struct Class {
    /// Description of the act.
    pub name: &'static str,
    act: Act,
}

/// The act. In statements `{at}` is an entry with its content, `{other}` another one, `{cp}` one of
/// the checkpoints.
pub enum Act {
    /// Flips a random bit in a random column of a table.
    Flip(&'static str),
    /// Changes rows.
    Rows(&'static [&'static str]),
    /// Changes rows, and must be reported at that entry.
    RowsAt(&'static [&'static str]),
    /// Changes the database itself: in a file, or on a server with statements to undo it.
    Database {
        sqlite: &'static [&'static str],
        postgres: &'static [&'static str],
        undo: &'static [&'static str],
    },
    Swap {
        table: &'static str,
    },
    SwapBodies,
    ShiftBack,
    Rewrite {
        sign: bool,
    },
    CutWithCheckpoints,
    ForeignCheckpoint,
    ForgedKey,
    ForgedArchive(Note),
    ArchiveFile,
    DeletedArchiveFile,
}

/// Signature of a forged archive record.
#[derive(Clone, Copy)]
pub enum Note {
    None,
    Foreign,
    OfReplacedKey,
    OfAnotherRange,
}

const fn class(name: &'static str, act: Act) -> Class {
    Class { name, act }
}

const fn database(
    name: &'static str,
    sqlite: &'static [&'static str],
    postgres: &'static [&'static str],
    undo: &'static [&'static str],
) -> Class {
    let act = Act::Database {
        sqlite,
        postgres,
        undo,
    };
    Class { name, act }
}

impl Class {
    /// True if the class applies to this kind of database.
    pub fn is_for(&self, sqlite: bool) -> bool {
        match &self.act {
            Act::Database {
                sqlite: in_file,
                postgres,
                ..
            } => !if sqlite { in_file } else { postgres }.is_empty(),
            _ => true,
        }
    }

    pub async fn perform(&self, victim: &mut Victim) -> Done {
        victim.perform(&self.act).await
    }
}

/// Returns all classes.
pub fn all() -> impl Iterator<Item = &'static Class> {
    [
        rows::CLASSES,
        records::CLASSES,
        indexes::CLASSES,
        schema::CLASSES,
    ]
    .into_iter()
    .flatten()
}
