//! Performs the acts of each class.

use ledger::domain::archive::StoredArchive;
use ledger::domain::checkpoint::Checkpoint;
use ledger_format::archive::IdHasher;
use ledger_format::chain::{Entry, Hash, chain_hash};
use rand::random_range;

use super::classes::{Act, Note};
use super::ledger_to_attack::{ARCHIVES, CHECKPOINTS, COUNT, FIRST, JOBS, LAST_BUT_ONE, PERMANENT};
use crate::proof::ORIGIN;
use crate::tampering::{Victim, key};

/// Result of an act.
pub enum Done {
    /// The database refused it.
    Refused,
    /// It must be reported at this entry.
    At(i64),
    /// It must be reported, at any entry.
    Somewhere,
}

/// Type of a column.
#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    Number,
    Text,
    Bytes,
}
use Kind::{Bytes, Number, Text};

/// Columns that prove something, or that readers rely on.
pub const COLUMNS: &[(&str, &str, Kind)] = &[
    ("entries", "seq", Number),
    ("entries", "id", Text),
    ("entries", "leaf", Bytes),
    ("entries", "chain", Bytes),
    ("payloads", "seq", Number),
    ("payloads", "recorded_at", Number),
    ("payloads", "cluster", Text),
    ("payloads", "subject", Text),
    ("payloads", "body", Bytes),
    ("head", "seq", Number),
    ("head", "chain", Bytes),
    ("event_index", "seq", Number),
    ("event_index", "recorded_at", Number),
    ("event_index", "cluster", Text),
    ("event_index", "category", Text),
    ("event_index", "type", Text),
    ("event_index", "job_id", Number),
    ("event_index", "array_job_id", Number),
    ("event_index", "task_id", Number),
    ("event_index", "het_job_id", Number),
    ("event_index", "het_offset", Number),
    ("event_index", "run", Text),
    ("event_index", "user_name", Text),
    ("event_index", "subject", Text),
    ("event_index", "email", Text),
    ("event_index", "account", Text),
    ("event_index", "partition", Text),
    ("event_index", "node", Text),
    ("event_index", "name", Text),
    ("event_index", "wait_seconds", Number),
    ("event_index", "cost_micros", Number),
    ("event_index", "currency", Text),
    ("event_index", "occurred_at", Number),
    ("event_index", "observed_at", Number),
    ("event_nodes", "seq", Number),
    ("event_nodes", "block", Text),
    ("checkpoints", "number", Number),
    ("checkpoints", "size", Number),
    ("checkpoints", "root", Bytes),
    ("checkpoints", "note", Text),
    ("checkpoint_keys", "number", Number),
    ("checkpoint_keys", "vkey", Text),
    ("checkpoint_keys", "from_size", Number),
    // Not of the first key: only a hand-over has an audit entry to compare with.
    ("checkpoint_keys", "made_at", Number),
    ("checkpoint_keys", "made_by", Text),
    ("subtrees", "level", Number),
    ("subtrees", "idx", Number),
    ("subtrees", "hash", Bytes),
    ("archives", "number", Number),
    ("archives", "first_seq", Number),
    ("archives", "last_seq", Number),
    ("archives", "path", Text),
    ("archives", "sha256", Bytes),
    ("archives", "bytes", Number),
    ("archives", "signed_by", Text),
    ("archives", "made_at", Number),
    ("archives", "made_by", Text),
    ("archives", "ids", Bytes),
    ("archives", "note", Text),
];

/// Returns a condition for one row of a table.
fn row(table: &str, column: &str) -> String {
    match (table, column) {
        ("head", _) => "only_row = 1".to_owned(),
        ("checkpoints", _) => format!("number = {}", random_range(1..=CHECKPOINTS)),
        ("checkpoint_keys", "made_at") => "number = 2".to_owned(),
        ("checkpoint_keys", _) => format!("number = {}", random_range(1..=2)),
        ("archives", _) => format!("number = {}", random_range(1..=ARCHIVES)),
        ("subtrees", _) => "level = 8 AND idx = 0".to_owned(),
        ("entries", _) => format!("seq = {}", random_range(1..=COUNT)),
        ("event_nodes", _) => format!("seq = {}", random_range(JOBS..=COUNT)),
        _ => format!("seq = {}", random_range(FIRST..=COUNT)),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Victim {
    /// Tampers with the ledger.
    pub async fn perform(&mut self, act: &Act) -> Done {
        let at = random_range(FIRST..=COUNT);
        match act {
            Act::Flip(table) => return self.flip(table).await,
            Act::Rows(statements) => {
                self.statements(statements, at).await;
            }
            Act::RowsAt(statements) => {
                self.statements(statements, at).await;
                return found_at(at);
            }
            Act::Database {
                sqlite, postgres, ..
            } if self.database.is_sqlite() => {
                let _ = postgres;
                self.database_statements(sqlite, at).await;
            }
            Act::Database { postgres, undo, .. } => {
                self.database_statements(postgres, at).await;
                self.undo = undo.iter().map(|sql| (*sql).to_owned()).collect();
            }
            Act::Swap { table } => {
                let other = random_range(FIRST..COUNT);
                let other = other + i64::from(other >= at);
                for (from, to) in [(at, -1), (other, at), (-1, other)] {
                    self.step(&format!("UPDATE {table} SET seq = {to} WHERE seq = {from}"))
                        .await;
                }
                if *table == "entries" {
                    return found_at(at.min(other));
                }
            }
            Act::SwapBodies => {
                let other = random_range(FIRST..COUNT);
                let other = other + i64::from(other >= at);
                for (seq, body) in [(at, self.body(other).await), (other, self.body(at).await)] {
                    let body = hex(&body);
                    self.step(&format!(
                        "UPDATE payloads SET body = x'{body}' WHERE seq = {seq}"
                    ))
                    .await;
                }
                return found_at(at.min(other));
            }
            Act::ShiftBack => {
                self.shift_back(at).await;
                // If the last row is removed, only the chain value of the head reveals it.
                return found_at(at.min(COUNT - 1));
            }
            Act::Rewrite { sign } => self.rewrite(at, *sign).await,
            Act::CutWithCheckpoints => {
                for table in ["event_nodes", "event_index", "payloads", "entries"] {
                    self.step(&format!("DELETE FROM {table} WHERE seq > {LAST_BUT_ONE}"))
                        .await;
                }
                self.step(&format!(
                    "DELETE FROM checkpoints WHERE size > {LAST_BUT_ONE}"
                ))
                .await;
                self.step(&format!("UPDATE head SET (seq, chain) = (SELECT seq, chain FROM entries WHERE seq = {LAST_BUT_ONE})"))
                    .await;
            }
            Act::ForeignCheckpoint => {
                let checkpoint = Checkpoint {
                    origin: ORIGIN.into(),
                    size: at.unsigned_abs(),
                    root: [7; 32],
                };
                let note = checkpoint.sign(&[&key(9)]).unwrap();
                self.step(&format!("INSERT INTO checkpoints (number, size, root, note, made_at) VALUES ({}, {at}, x'{}', '{note}', 1)", CHECKPOINTS + 1, hex(&[7; 32])))
                    .await;
            }
            Act::ForgedKey => {
                let vkey = key(9).public();
                let size = random_range(0..=COUNT);
                self.step(&format!("INSERT INTO checkpoint_keys (number, vkey, from_size, made_at, made_by) VALUES (3, '{vkey}', {size}, 1, '')"))
                    .await;
            }
            Act::ForgedArchive(note) => {
                self.forge_archive(*note).await;
                return Done::At(FIRST);
            }
            Act::ArchiveFile => self.alter_file(),
            Act::DeletedArchiveFile => {
                let (path, _) = self.archive.clone().unwrap();
                self.done.push(format!("{} deleted", path.display()));
                std::fs::remove_file(path).unwrap();
                return Done::At(4);
            }
        }
        Done::Somewhere
    }

    /// Changes rows, after removing the triggers that refuse it.
    async fn step(&mut self, sql: &str) {
        let rows = self.execute(sql).await;
        self.done.push(format!("{sql} -- {rows} rows"));
    }

    async fn statements(&mut self, statements: &[&str], at: i64) {
        for sql in filled(statements, at) {
            self.step(&sql).await;
        }
    }

    async fn database_statements(&mut self, statements: &[&str], at: i64) {
        for sql in filled(statements, at) {
            self.done.push(sql.clone());
            self.outsider.execute(&sql).await;
        }
    }

    async fn body(&mut self, seq: i64) -> Vec<u8> {
        let sql = format!("SELECT body FROM payloads WHERE seq = {seq}");
        self.outsider.bytes(&sql).await
    }

    /// Flips one bit of a column. NULL becomes a value.
    async fn flip(&mut self, table: &str) -> Done {
        let columns: Vec<_> = COLUMNS.iter().filter(|(of, ..)| *of == table).collect();
        let (_, column, kind) = columns[random_range(0..columns.len())];
        let row = row(table, column);
        let sqlite = self.database.is_sqlite();
        let value = if *kind == Number {
            let sql = format!("SELECT COALESCE({column}, 0) FROM {table} WHERE {row}");
            let [value] = self.outsider.numbers(&sql).await[..] else {
                return Done::Refused;
            };
            (value ^ (1 << random_range(0..63))).to_string()
        } else {
            let bytes = match (kind, sqlite) {
                (Bytes, _) => column.to_string(),
                (_, true) => format!("CAST({column} AS BLOB)"),
                (_, false) => format!("convert_to({column}, 'UTF8')"),
            };
            let empty = if sqlite { "x''" } else { "'\\x'::bytea" };
            let sql = format!("SELECT COALESCE({bytes}, {empty}) FROM {table} WHERE {row}");
            let mut bytes = self.outsider.bytes(&sql).await;
            if bytes.is_empty() {
                bytes.push(b'x');
            } else {
                let byte = random_range(0..bytes.len());
                bytes[byte] ^= 1 << random_range(0..8);
            }
            let bytes = hex(&bytes);
            match (kind, sqlite) {
                (Text, true) => format!("CAST(x'{bytes}' AS TEXT)"),
                (Text, false) => format!("convert_from('\\x{bytes}', 'UTF8')"),
                (_, true) => format!("x'{bytes}'"),
                (_, false) => format!("'\\x{bytes}'"),
            }
        };
        let sql = format!("UPDATE {table} SET {column} = {value} WHERE {row}");
        self.done.push(sql.clone());
        self.unguard().await;
        match self.outsider.try_execute(&sql).await {
            Ok(_) => Done::Somewhere,
            // A constraint, or text that is not valid in the encoding.
            Err(_) => Done::Refused,
        }
    }

    async fn shift_back(&mut self, at: i64) {
        for table in ["entries", "payloads"] {
            self.step(&format!("DELETE FROM {table} WHERE seq = {at}"))
                .await;
            for seq in at + 1..=COUNT {
                self.step(&format!(
                    "UPDATE {table} SET seq = {seq} - 1 WHERE seq = {seq}"
                ))
                .await;
            }
        }
        self.step("UPDATE head SET seq = seq - 1").await;
    }

    /// Changes the body of an entry, and recomputes leaf and chain from there on.
    async fn rewrite(&mut self, at: i64, sign: bool) {
        let mut tree = self.edge.clone();
        let before = format!("SELECT chain FROM entries WHERE seq = {}", FIRST - 1);
        let mut before: Hash = self.outsider.bytes(&before).await.try_into().unwrap();
        for seq in FIRST..=COUNT {
            let outsider = &mut self.outsider;
            let of = |column: &str, table: &str| {
                format!("SELECT {column} FROM {table} WHERE seq = {seq}")
            };
            if seq < at {
                let leaf = outsider.bytes(&of("leaf", "entries")).await;
                tree.push(leaf.try_into().unwrap());
                before = outsider
                    .bytes(&of("chain", "entries"))
                    .await
                    .try_into()
                    .unwrap();
                continue;
            }
            let cluster = outsider.texts(&of("cluster", "payloads")).await.remove(0);
            let subject = outsider.texts(&of("subject", "payloads")).await.remove(0);
            let id = outsider.texts(&of("id", "entries")).await.remove(0);
            let mut body = outsider.bytes(&of("body", "payloads")).await;
            if seq == at {
                // An unknown field, so that the index columns stay the same.
                body.extend([0xf8, 0x7f, 1]);
            }
            let entry = Entry {
                cluster: &cluster,
                seq: seq.unsigned_abs(),
                id: &id,
                subject: &subject,
                body: &body,
            };
            let leaf = entry.leaf();
            tree.push(leaf);
            before = chain_hash(&before, &leaf);
            let (leaf, chain, body) = (hex(&leaf), hex(&before), hex(&body));
            self.step(&format!(
                "UPDATE payloads SET body = x'{body}' WHERE seq = {seq}"
            ))
            .await;
            self.step(&format!(
                "UPDATE entries SET leaf = x'{leaf}', chain = x'{chain}' WHERE seq = {seq}"
            ))
            .await;
        }
        self.step(&format!("UPDATE head SET chain = x'{}'", hex(&before)))
            .await;
        if sign {
            // Another ledger that is consistent from end to end.
            let checkpoint = Checkpoint {
                origin: ORIGIN.into(),
                size: COUNT.unsigned_abs(),
                root: tree.root(),
            };
            let (note, vkey) = (checkpoint.sign(&[&key(9)]).unwrap(), key(9).public());
            for sql in [
                "DELETE FROM checkpoints".to_owned(),
                "DELETE FROM checkpoint_keys".to_owned(),
                format!(
                    "INSERT INTO checkpoint_keys (number, vkey, from_size, made_at, made_by) VALUES (1, '{vkey}', 0, 1, '')"
                ),
                format!(
                    "INSERT INTO checkpoints (number, size, root, note, made_at) VALUES (1, {COUNT}, x'{}', '{note}', 1)",
                    hex(&tree.root())
                ),
            ] {
                self.step(&sql).await;
            }
        }
    }

    /// Destroys content up to the last checkpoint but one, and records it as erased.
    async fn forge_archive(&mut self, note: Note) {
        let root = format!("SELECT root FROM checkpoints WHERE size = {LAST_BUT_ONE}");
        let root = self.outsider.bytes(&root).await.try_into().unwrap();
        let mut ids = IdHasher::default();
        for seq in FIRST..=LAST_BUT_ONE {
            let id = format!("SELECT id FROM entries WHERE seq = {seq}");
            ids.push(self.outsider.texts(&id).await[0].as_bytes());
        }
        let forged = StoredArchive {
            number: ARCHIVES + 1,
            first_seq: FIRST,
            last_seq: LAST_BUT_ONE,
            file: None,
            signed_by: key(2).public().to_string(),
            made_at: 1,
            made_by: "root".into(),
            ids: ids.finish().to_vec(),
            note: None,
        };
        let note = match note {
            Note::None => "NULL".to_owned(),
            Note::Foreign => format!("'{}'", forged.range(root).sign(&key(9)).unwrap()),
            Note::OfReplacedKey => format!("'{}'", forged.range(root).sign(&key(1)).unwrap()),
            Note::OfAnotherRange => "(SELECT note FROM archives WHERE number = 2)".to_owned(),
        };
        let (signed_by, ids) = (&forged.signed_by, hex(&forged.ids));
        self.step(&format!("INSERT INTO archives (number, first_seq, last_seq, signed_by, made_at, made_by, ids, note) VALUES ({ARCHIVES} + 1, {FIRST}, {LAST_BUT_ONE}, '{signed_by}', 1, 'root', x'{ids}', {note})"))
            .await;
        for table in ["event_nodes", "event_index", "payloads"] {
            self.step(&format!(
                "DELETE FROM {table} WHERE seq BETWEEN {FIRST} AND {LAST_BUT_ONE}"
            ))
            .await;
        }
    }

    /// Flips a bit of the file, or truncates it.
    fn alter_file(&mut self) {
        let (path, whole) = self.archive.clone().unwrap();
        let mut altered = whole;
        let byte = random_range(0..altered.len());
        if random_range(0..4) == 0 {
            altered.truncate(byte);
        } else {
            altered[byte] ^= 1 << random_range(0..8);
        }
        self.done.push(format!("byte {byte} of {}", path.display()));
        std::fs::write(path, altered).unwrap();
    }
}

/// Without its audit entry an archive does not count either, and is reported first.
fn found_at(seq: i64) -> Done {
    match seq < FIRST + 2 {
        true => Done::Somewhere,
        false => Done::At(seq),
    }
}

/// Fills the placeholders of the statements, with the same positions in all.
fn filled(statements: &[&str], at: i64) -> Vec<String> {
    let places = [
        ("{at}", at),
        ("{job}", random_range(JOBS..=COUNT)),
        ("{cp}", random_range(1..=CHECKPOINTS)),
        ("{audit}", PERMANENT[random_range(0..2)]),
        ("{archive}", random_range(1..=ARCHIVES)),
        ("{end}", COUNT + 1),
    ];
    let fill = |sql: &&str| {
        places
            .iter()
            .fold((*sql).to_owned(), |sql, (place, number)| {
                sql.replace(place, &number.to_string())
            })
    };
    statements.iter().map(fill).collect()
}
