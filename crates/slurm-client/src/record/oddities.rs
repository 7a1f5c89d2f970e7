//! Items of a record that could not be parsed, by field.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::shape::shape;

/// Most fields that are named.
const MAX_FIELDS: usize = 8;
/// TRES that Slurm names itself; others have names of the site.
const OWN_TRES: [&str; 8] = [
    "billing", "cpu", "energy", "gres/gpu", "mem", "node", "pages", "vmem",
];

/// Items of a record that could not be parsed, such as TRES items and numbers. Serialized as their number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Oddities(Option<Box<Found>>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Found {
    count: u32,
    fields: Vec<Oddity>,
}

/// A field with an item that could not be parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Oddity {
    /// Slurm's name of the field.
    pub field: String,
    /// Shape of the first such item, without anything about a person.
    pub example: String,
}

impl Oddities {
    /// Number of items.
    pub fn count(&self) -> u32 {
        self.0.as_ref().map_or(0, |found| found.count)
    }

    pub(crate) fn fields(&self) -> &[Oddity] {
        self.0.as_ref().map_or(&[], |found| &found.fields)
    }

    /// Adds an item by what Slurm printed.
    pub(crate) fn note(&mut self, field: &str, printed: &str) {
        self.add(1, field, || shape(printed));
    }

    /// Adds items of a list of TRES.
    pub(crate) fn note_tres(&mut self, field: &str, items: &[String]) {
        for item in items {
            self.add(1, field, || match item.split_once('=') {
                Some((name, amount)) if OWN_TRES.contains(&name) => {
                    format!("{name}={}", shape(amount))
                }
                _ => shape(item),
            });
        }
    }

    /// Adds those of an object within a field.
    pub(crate) fn note_within(&mut self, field: &str, other: &Self) {
        let Some(found) = &other.0 else { return };
        for one in &found.fields {
            let field = format!("{field}.{}", one.field);
            self.add(0, &field, || one.example.clone());
        }
        self.add_count(found.count);
    }

    fn add(&mut self, count: u32, field: &str, example: impl FnOnce() -> String) {
        self.add_count(count);
        let Some(found) = &mut self.0 else { return };
        let is_known = found.fields.iter().any(|known| known.field == field);
        if !is_known && found.fields.len() < MAX_FIELDS {
            found.fields.push(Oddity {
                field: field.to_owned(),
                example: example(),
            });
        }
    }

    fn add_count(&mut self, count: u32) {
        let found = self.0.get_or_insert_default();
        found.count = found.count.saturating_add(count);
    }
}

impl Serialize for Oddities {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.count().serialize(serializer)
    }
}

/// The fields are not known any more.
impl<'de> Deserialize<'de> for Oddities {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let count = u32::deserialize(deserializer)?;
        let fields = Vec::new();
        Ok(Self((count > 0).then(|| Box::new(Found { count, fields }))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_is_named_once_with_the_shape_of_its_first_item() {
        let mut found = Oddities::default();
        found.note("ExitCode", "alice:7");
        found.note_tres(
            "AllocTRES",
            &["billing=many1".to_owned(), "cpu=x".to_owned()],
        );
        found.note_tres("ReqTRES", &["gres/alice:7=x".to_owned()]);
        let mut whole = Oddities::default();
        whole.note_within("steps", &found);
        whole.note_within("steps", &found);
        assert_eq!((found.count(), whole.count()), (4, 8));
        let shown = |found: &Oddities| -> Vec<(String, String)> {
            let fields = found.fields().iter();
            fields
                .map(|one| (one.field.clone(), one.example.clone()))
                .collect()
        };
        let expected = [
            ("ExitCode", "x:0"),
            ("AllocTRES", "billing=x0"),
            ("ReqTRES", "x/x:0=x"),
        ];
        let named = expected.map(|(field, example)| (field.to_owned(), example.to_owned()));
        assert_eq!(shown(&found), named);
        let named = expected.map(|(field, example)| (format!("steps.{field}"), example.to_owned()));
        assert_eq!(shown(&whole), named);
        let json = serde_json::to_string(&found).unwrap();
        assert_eq!(json, "4");
        let stored: Oddities = serde_json::from_str(&json).unwrap();
        assert_eq!((stored.count(), stored.fields()), (4, &[][..]));
    }
}
