//! Slurm's compressed node lists: `n[1-3,08-11]-ib,login`.

use std::collections::{BTreeMap, BTreeSet};

/// Largest number of hosts of one bracket range (`MAX_RANGE` in Slurm's `hostlist.c`), and the default limit of a whole list.
pub const MAX_HOSTS: usize = 65_536;

/// Slurm's placeholders for "no host".
const NOTHING: [&str; 4] = ["(null)", "(unknown)", "None", "N/A"];

/// The text is not a host list, or has too many hosts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("read host list {text:?}: {problem}")]
pub struct HostListError {
    text: String,
    problem: &'static str,
}

/// Functions that parse and write host lists. A list itself is a plain vector of names.
#[derive(Clone, Copy, Debug)]
pub struct HostList;

impl HostList {
    /// The names in Slurm's order; none for `(null)`, `None assigned`, `(unknown)`, `None` and the empty text.
    ///
    /// Bounded: more than [`MAX_HOSTS`] names are an error, so a hostile text cannot exhaust the memory.
    pub fn expand(text: &str) -> Result<Vec<String>, HostListError> {
        Self::expand_up_to(text, MAX_HOSTS)
    }

    /// Like [`expand`](Self::expand) with another limit.
    pub fn expand_up_to(text: &str, max: usize) -> Result<Vec<String>, HostListError> {
        let error = |problem| HostListError {
            text: text.chars().take(128).collect(),
            problem,
        };
        let mut hosts = Vec::new();
        for item in Self::items(text)? {
            expand_item(item, max, &mut hosts).map_err(error)?;
        }
        Ok(hosts)
    }

    /// The items of a list: names, or names with brackets; none for a placeholder.
    pub fn items(text: &str) -> Result<Vec<&str>, HostListError> {
        if text.trim() == "None assigned" {
            return Ok(Vec::new());
        }
        let mut items = split_items(text).ok_or_else(|| HostListError {
            text: text.chars().take(128).collect(),
            problem: "brackets do not match",
        })?;
        items.retain(|item| !NOTHING.contains(item));
        Ok(items)
    }

    /// The shortest usual form: names that differ only in their last number share a bracket, in ascending order of the number. Groups keep
    /// the order of their first name. Duplicates are written once.
    pub fn compress<S: AsRef<str>>(hosts: &[S]) -> String {
        let mut groups: Vec<Group<'_>> = Vec::new();
        let mut places: BTreeMap<(&str, usize, &str), usize> = BTreeMap::new();
        let mut plain: BTreeSet<&str> = BTreeSet::new();
        for host in hosts.iter().map(AsRef::as_ref) {
            let Some((prefix, digits, suffix)) = Self::split_number(host) else {
                if plain.insert(host) {
                    groups.push(Group {
                        prefix: host,
                        suffix: "",
                        width: 0,
                        numbers: Vec::new(),
                    });
                }
                continue;
            };
            // A number without a leading zero joins numbers of any width; with one, the width is part of the name.
            let width = if digits.starts_with('0') && digits.len() > 1 {
                digits.len()
            } else {
                0
            };
            let Ok(number) = digits.parse::<u64>() else {
                continue;
            };
            let place = *places.entry((prefix, width, suffix)).or_insert_with(|| {
                groups.push(Group {
                    prefix,
                    suffix,
                    width,
                    numbers: Vec::new(),
                });
                groups.len() - 1
            });
            groups[place].numbers.push(number);
        }
        groups
            .iter_mut()
            .map(Group::write)
            .collect::<Vec<_>>()
            .join(",")
    }

    /// Splits `n12-ib` into `n`, `12`, `-ib`: at the last number. Names with a bracket or a number of more than 18 digits stay whole.
    pub fn split_number(host: &str) -> Option<(&str, &str, &str)> {
        if host.contains(['[', ']', ',']) {
            return None;
        }
        let end = host.rfind(|c: char| c.is_ascii_digit())? + 1;
        let start = host[..end]
            .rfind(|c: char| !c.is_ascii_digit())
            .map_or(0, |at| {
                at + host[at..].chars().next().map_or(1, char::len_utf8)
            });
        let digits = &host[start..end];
        (digits.len() <= 18).then_some((&host[..start], digits, &host[end..]))
    }
}

struct Group<'a> {
    prefix: &'a str,
    suffix: &'a str,
    width: usize,
    numbers: Vec<u64>,
}

impl Group<'_> {
    fn write(&mut self) -> String {
        self.numbers.sort_unstable();
        self.numbers.dedup();
        let width = self.width;
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for &number in &self.numbers {
            match ranges.last_mut() {
                Some((_, high)) if *high + 1 == number => *high = number,
                _ => ranges.push((number, number)),
            }
        }
        let text = |&(low, high): &(u64, u64)| match low == high {
            true => format!("{low:0width$}"),
            false => format!("{low:0width$}-{high:0width$}"),
        };
        let (prefix, suffix) = (self.prefix, self.suffix);
        match &ranges[..] {
            [] => format!("{prefix}{suffix}"),
            [(low, high)] if low == high => format!("{prefix}{low:0width$}{suffix}"),
            ranges => format!(
                "{prefix}[{}]{suffix}",
                ranges.iter().map(text).collect::<Vec<_>>().join(",")
            ),
        }
    }
}

/// Splits at commas and white space outside brackets.
fn split_items(text: &str) -> Option<Vec<&str>> {
    let (mut items, mut start, mut inside) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        match c {
            '[' if inside => return None,
            '[' => inside = true,
            ']' if !inside => return None,
            ']' => inside = false,
            c if !inside && (c == ',' || c.is_whitespace()) => {
                items.push(&text[start..at]);
                start = at + c.len_utf8();
            }
            _ => {}
        }
    }
    items.push(&text[start..]);
    items.retain(|item| !item.is_empty());
    (!inside).then_some(items)
}

fn expand_item(item: &str, max: usize, hosts: &mut Vec<String>) -> Result<(), &'static str> {
    let mut names = vec![String::new()];
    let mut rest = item;
    while let Some((before, after)) = rest.split_once('[') {
        let (ranges, after) = after.split_once(']').ok_or("brackets do not match")?;
        let numbers = expand_ranges(ranges, max)?;
        if names.len().saturating_mul(numbers.len()) > max {
            return Err("expands to too many hosts");
        }
        names = names
            .iter()
            .flat_map(|name| {
                numbers
                    .iter()
                    .map(move |number| format!("{name}{before}{number}"))
            })
            .collect();
        rest = after;
    }
    if hosts.len() + names.len() > max {
        return Err("expands to too many hosts");
    }
    hosts.extend(names.into_iter().map(|name| name + rest));
    Ok(())
}

fn expand_ranges(ranges: &str, max: usize) -> Result<Vec<String>, &'static str> {
    let mut numbers = Vec::new();
    for range in ranges.split(',') {
        let (low_text, high_text) = range.split_once('-').unwrap_or((range, range));
        let (low, high) = (number(low_text)?, number(high_text)?);
        if low > high {
            return Err("range is reversed");
        }
        let count = usize::try_from(high - low)
            .unwrap_or(usize::MAX)
            .saturating_add(1);
        if count > MAX_HOSTS || numbers.len().saturating_add(count) > max {
            return Err("expands to too many hosts");
        }
        // The width of the first number counts: `n[08-11]`.
        let width = low_text.len();
        numbers.extend((low..=high).map(|number| format!("{number:0width$}")));
    }
    Ok(numbers)
}

fn number(text: &str) -> Result<u64, &'static str> {
    if text.is_empty() || text.len() > 18 || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("bracket contains something that is not a number");
    }
    text.parse().map_err(|_| "number is too large")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(text: &str, hosts: &[&str]) {
        assert_eq!(HostList::expand(text).unwrap(), hosts, "{text}");
    }

    #[test]
    fn grammar_of_the_manual_is_read() {
        check("n1", &["n1"]);
        check("n[1-3]", &["n1", "n2", "n3"]);
        check("n[08-11]", &["n08", "n09", "n10", "n11"]);
        check("n[1,3-4]-ib,login", &["n1-ib", "n3-ib", "n4-ib", "login"]);
        check("r[1-2]n[0-1]", &["r1n0", "r1n1", "r2n0", "r2n1"]);
        check("a b,c", &["a", "b", "c"]);
        check("n1,(null)", &["n1"]);
        for nothing in ["", "(null)", "None assigned", "(unknown)", "None"] {
            check(nothing, &[]);
        }
        for bad in [
            "n[",
            "n]",
            "n[1",
            "n[[1]]",
            "n[]",
            "n[3-1]",
            "n[a]",
            "n[1-]",
            "n[-1]",
            "n[1-999999999]",
        ] {
            assert!(HostList::expand(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn many_brackets_are_bounded() {
        assert!(HostList::expand("n[1-9999][1-9999][1-9999]").is_err());
        assert!(HostList::expand_up_to("n[1-4]", 3).is_err());
    }

    #[test]
    fn compress_writes_ranges() {
        assert_eq!(HostList::compress(&["n1", "n2", "n3", "n7"]), "n[1-3,7]");
        assert_eq!(HostList::compress(&["n08", "n09", "n10"]), "n[08-09],n10");
        assert_eq!(
            HostList::compress(&["login", "n2-ib", "n1-ib"]),
            "login,n[1-2]-ib"
        );
        assert_eq!(HostList::compress(&["a", "b", "a"]), "a,b");
        assert_eq!(HostList::compress::<&str>(&[]), "");
    }

    proptest! {
        #[test]
        fn compress_then_expand_gives_the_same_hosts(
            hosts in proptest::collection::btree_set("[a-c]{1,2}[0-9]{0,4}(-ib)?", 0..60),
        ) {
            let hosts: Vec<_> = hosts.into_iter().collect();
            let back: BTreeSet<_> = HostList::expand(&HostList::compress(&hosts)).unwrap().into_iter().collect();
            prop_assert_eq!(back, hosts.into_iter().collect::<BTreeSet<_>>());
        }

        #[test]
        fn any_text_is_survived(text in "\\PC*", noise in "[a-z0-9,\\[\\]-]{0,40}") {
            if let Ok(hosts) = HostList::expand(&noise) {
                let back: BTreeSet<_> = HostList::expand(&HostList::compress(&hosts)).unwrap().into_iter().collect();
                prop_assert_eq!(back, hosts.into_iter().collect::<BTreeSet<_>>());
            }
            if let Ok(hosts) = HostList::expand(&text) {
                prop_assert!(hosts.len() <= MAX_HOSTS);
            }
        }
    }
}
