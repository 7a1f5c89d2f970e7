//! Index keys for the nodes of an event, so that a database finds it by any of its nodes, however
//! many there are.
//!
//! A host list is split into blocks of names that differ only in their last number. A block has a
//! power of two of names and starts at a multiple of its size. It is written like a Slurm host list
//! (`n[16-31]`, `n5`). Ten thousand consecutive nodes are about a dozen blocks. A node can be
//! covered by only one block of each size. It is in the list if one of these few blocks is among
//! those of the list.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use mesh_events::Event;
use mesh_events::proto::mesh::event::v1::event::Payload;
use slurm_types::{HostList, MAX_HOSTS};

/// The largest block has 2^16 names, the most that one bracket of Slurm's may contain.
const MAX_BLOCK_LEVEL: u32 = 16;
/// Events with more nodes (counting every list) or more blocks cannot be found by node. Slurm does
/// not produce them, and they must not delay other events.
const MAX_NODES: usize = 4 * MAX_HOSTS;
const MAX_BLOCKS: usize = 8192;

/// Names that differ in a number: the text before it, its width if it has leading zeros (else 0),
/// and the text after it.
type NumberedName<'a> = (Cow<'a, str>, usize, Cow<'a, str>);

/// Blocks of the nodes of an event: of the node itself, or of those that the job ran on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeBlocks {
    /// Blocks that together are exactly these nodes.
    pub blocks: BTreeSet<String>,
    /// True if a host list of the event is invalid or has too many nodes. Its nodes are not in the
    /// blocks.
    pub unread: bool,
}

impl NodeBlocks {
    /// Extracts the nodes of an event.
    pub fn of(event: &Event) -> Self {
        let mut found = BlockBuilder::default();
        if let Some(job) = event.job() {
            found.add_list(&job.nodes);
            found.add_list(&job.failed_node);
        }
        match &event.payload {
            // The cost lines of a resized job also name the nodes that it released.
            Some(Payload::Cost(cost)) => {
                cost.lines
                    .iter()
                    .for_each(|line| found.add_list(&line.nodes));
            }
            Some(Payload::Node(payload)) => {
                let names = payload.node.iter().map(|node| &*node.name);
                names.for_each(|name| found.add_name(Cow::Borrowed(name)));
            }
            Some(Payload::Job(_) | Payload::Queue(_) | Payload::User(_) | Payload::Capture(_))
            | None => {}
        }
        let unread = found.unread;
        match found.blocks() {
            blocks if blocks.len() <= MAX_BLOCKS => Self { blocks, unread },
            _ => Self {
                blocks: BTreeSet::new(),
                unread: true,
            },
        }
    }
}

/// True if it can be the name of a single node.
pub fn is_single_node(node: &str) -> bool {
    // PostgreSQL cannot store zero bytes.
    let is_none_of_a_name = |c: char| matches!(c, '[' | ']' | ',' | '\0') || c.is_whitespace();
    !node.is_empty() && !node.contains(is_none_of_a_name)
}

/// Collects nodes and keeps ranges as ranges, because a backfill reads many lists of thousands of
/// nodes.
#[derive(Default)]
struct BlockBuilder<'a> {
    plain: BTreeSet<String>,
    families: BTreeMap<NumberedName<'a>, Vec<(u64, u64)>>,
    count: usize,
    unread: bool,
}

impl<'a> BlockBuilder<'a> {
    /// Adds the whole list, or nothing if it is invalid.
    fn add_list(&mut self, list: &'a str) {
        match self.read(list) {
            Some((ranges, names)) => {
                for (family, range) in ranges {
                    self.families.entry(family).or_default().push(range);
                }
                names
                    .into_iter()
                    .for_each(|name| self.add_name(Cow::Owned(name)));
            }
            None => self.unread = true,
        }
    }

    fn read(&mut self, list: &'a str) -> Option<(Vec<NumberRange<'a>>, Vec<String>)> {
        let (mut ranges, mut names) = (Vec::new(), Vec::new());
        let mut count: usize = 0;
        for item in HostList::items(list).ok()? {
            if let Some(of_item) = numbers(item) {
                let sizes = of_item.iter().map(|(_, (low, high))| high - low + 1);
                count += usize::try_from(sizes.sum::<u64>()).ok()?;
                ranges.extend(of_item);
            } else {
                let hosts = HostList::expand(item).ok()?;
                count += hosts.len();
                names.extend(hosts);
            }
            if count > MAX_HOSTS {
                return None;
            }
        }
        self.count += count;
        (self.count <= MAX_NODES).then_some((ranges, names))
    }

    /// Ignores invalid names.
    fn add_name(&mut self, name: Cow<'a, str>) {
        if !is_single_node(&name) {
            return;
        }
        match numbered(&name) {
            Some(((before, width, behind), number)) => {
                let family = (
                    before.into_owned().into(),
                    width,
                    behind.into_owned().into(),
                );
                self.families
                    .entry(family)
                    .or_default()
                    .push((number, number));
            }
            None => drop(self.plain.insert(name.into_owned())),
        }
    }

    /// Returns the largest blocks that together are these nodes.
    fn blocks(self) -> BTreeSet<String> {
        let mut blocks = self.plain;
        for (family, mut ranges) in self.families {
            ranges.sort_unstable();
            let mut ranges = ranges.into_iter().peekable();
            while let Some((mut from, mut high)) = ranges.next() {
                while let Some((_, further)) = ranges.next_if(|(low, _)| *low <= high + 1) {
                    high = high.max(further);
                }
                while from <= high {
                    let size = (high - from + 1).ilog2().min(from.trailing_zeros());
                    let size = size.min(MAX_BLOCK_LEVEL);
                    blocks.insert(written(&family, from, size));
                    from += 1 << size;
                }
            }
        }
        blocks
    }
}

/// Names that differ in a number, with the first and the last number.
type NumberRange<'a> = (NumberedName<'a>, (u64, u64));

/// Parses `n[1-3,08-11]-ib` without expanding it. Returns `None` for all other forms, which
/// `HostList` parses.
fn numbers(item: &str) -> Option<Vec<NumberRange<'_>>> {
    let (before, rest) = item.split_once('[')?;
    let (ranges, behind) = rest.split_once(']')?;
    // The bracket must be a complete number, and the last number of the name.
    let is_digit = |c: char| c.is_ascii_digit();
    if before.ends_with(is_digit) || behind.contains(|c| is_digit(c) || c == '[') {
        return None;
    }
    if !(is_single_node(before) || before.is_empty())
        || !(is_single_node(behind) || behind.is_empty())
    {
        return None;
    }
    let family = |width| (Cow::Borrowed(before), width, Cow::Borrowed(behind));
    let number = |text: &str| {
        let digits = (1..=18).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_digit());
        digits.then(|| text.parse::<u64>().ok()).flatten()
    };
    let mut numbers = Vec::new();
    for range in ranges.split(',') {
        let (low_text, high_text) = range.split_once('-').unwrap_or((range, range));
        let (low, high) = (number(low_text)?, number(high_text)?);
        if low > high || high - low >= MAX_HOSTS as u64 {
            return None;
        }
        // `[08-11]` is 08, 09, 10 and 11: numbers below 10 have leading zeros.
        let width = low_text.len();
        let unpadded = match width {
            1 => 0,
            _ => 10_u64.pow(u32::try_from(width).ok()? - 1),
        };
        if low < unpadded {
            numbers.push((family(width), (low, high.min(unpadded - 1))));
        }
        if high >= unpadded {
            numbers.push((family(0), (low.max(unpadded), high)));
        }
    }
    Some(numbers)
}

/// Returns all blocks that can contain a node, one of each size.
pub fn covering(node: &str) -> Vec<String> {
    match numbered(node) {
        Some((family, number)) => (0..=MAX_BLOCK_LEVEL)
            .map(|size| written(&family, number >> size << size, size))
            .collect(),
        None => vec![node.to_owned()],
    }
}

fn numbered(name: &str) -> Option<(NumberedName<'_>, u64)> {
    let (before, digits, behind) = HostList::split_number(name)?;
    let width = match digits.starts_with('0') && digits.len() > 1 {
        true => digits.len(),
        false => 0,
    };
    let family = (Cow::Borrowed(before), width, Cow::Borrowed(behind));
    Some((family, digits.parse().ok()?))
}

fn written((before, width, behind): &NumberedName<'_>, from: u64, size: u32) -> String {
    match size {
        0 => format!("{before}{from:0width$}{behind}", width = *width),
        _ => {
            let to = from + (1 << size) - 1;
            format!(
                "{before}[{from:0width$}-{to:0width$}]{behind}",
                width = *width
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use mesh_events::EventType;
    use mesh_events::proto::mesh::cost::v1::CostLine;
    use mesh_testkit::fixtures;
    use proptest::prelude::*;

    use super::*;

    fn of(list: &str) -> BTreeSet<String> {
        let mut found = BlockBuilder::default();
        found.add_list(list);
        assert!(!found.unread, "{list}");
        found.blocks()
    }

    fn check(list: &str, expected: &[&str]) {
        let expected = expected.iter().map(ToString::to_string).collect();
        assert_eq!(of(list), expected, "{list}");
    }

    #[test]
    fn a_list_is_broken_into_aligned_blocks() {
        check("", &[]);
        check("login", &["login"]);
        check("n5", &["n5"]);
        check("n[16-31]", &["n[16-31]"]);
        check("n[1-4]", &["n1", "n[2-3]", "n4"]);
        check("n[15-32]-ib", &["n15-ib", "n[16-31]-ib", "n32-ib"]);
        check("n[07-10]", &["n07", "n[08-09]", "n10"]);
        check("n[1-2],n[3-4],n3", &["n1", "n[2-3]", "n4"]);
        check("r[1-2]n[0-1]", &["r1n[0-1]", "r2n[0-1]"]);
        check(
            "n1[0-1],n[098-101]",
            &["n[10-11]", "n[098-099]", "n[100-101]"],
        );
        check("[1-2]a,n[1,1],(null)", &["1a", "2a", "n1"]);
        assert!(of("n[00001-10000]").len() < 30);
        assert!(of("n[1-65535]").len() <= 16);
    }

    #[test]
    fn a_node_has_a_block_of_each_size() {
        let blocks = covering("n0005-ib");
        assert_eq!(blocks.len(), 17);
        assert_eq!(
            blocks[..3],
            ["n0005-ib", "n[0004-0005]-ib", "n[0004-0007]-ib"]
        );
        assert_eq!(covering("login"), ["login"]);
        // The name of a block is never the name of a node.
        for name in ["n[16-31]", "n1,n2", "n1 n2", "", "a\0"] {
            assert!(!is_single_node(name), "{name:?}");
        }
    }

    #[test]
    fn nodes_of_jobs_costs_and_nodes_are_found() {
        let mut job = fixtures::job(1);
        job.nodes = "n[2-3]".into();
        job.scheduled_nodes = "n9".into();
        job.failed_node = "n7".into();
        let mut event = fixtures::job_event(EventType::CostFinalized, job);
        if let Some(Payload::Cost(cost)) = &mut event.payload {
            cost.lines.push(CostLine {
                nodes: "n5".into(),
                ..CostLine::default()
            });
        }
        let nodes = NodeBlocks::of(&event);
        let expected = ["n5", "n7", "n[2-3]"].map(str::to_owned).into();
        assert_eq!((nodes.blocks, nodes.unread), (expected, false));
    }

    #[test]
    fn an_unreadable_list_is_reported() {
        let mut job = fixtures::job(1);
        (job.nodes, job.failed_node) = ("n[1-".into(), "n7".into());
        let nodes = NodeBlocks::of(&fixtures::job_event(EventType::JobStarted, job));
        assert_eq!(
            (nodes.blocks, nodes.unread),
            (["n7".to_owned()].into(), true)
        );
    }

    #[test]
    fn a_list_of_too_many_nodes_is_not_indexed() {
        let of = |nodes: String| {
            let mut job = fixtures::job(1);
            job.nodes = nodes;
            let nodes = NodeBlocks::of(&fixtures::job_event(EventType::JobStarted, job));
            (nodes.blocks.len(), nodes.unread)
        };
        let every_other = |limit: usize| {
            let names = (0..limit).map(|n| format!("n{}", 2 * n));
            names.collect::<Vec<_>>().join(",")
        };
        assert_eq!(of(every_other(MAX_BLOCKS)), (MAX_BLOCKS, false));
        assert_eq!(of(every_other(MAX_BLOCKS + 1)), (0, true));
        assert_eq!(of("n[0-65535]".into()), (1, false));
        assert_eq!(of("n[0-65536]".into()), (0, true));
    }

    proptest! {
        #[test]
        fn a_node_is_in_a_list_if_one_of_its_blocks_is(
            ranges in proptest::collection::vec(("[ab]|n1-|n1", 0u64..140, 1u64..140, 0usize..4, "|-ib|x2"), 0..6),
            asked in "([ab]|n1-?)[0-9]{1,3}(-ib|x2)?",
            written_out: bool,
        ) {
            let lists: Vec<String> = ranges
                .iter()
                .map(|(before, low, count, width, behind)| {
                    let high = low + count - 1;
                    format!("{before}[{low:0width$}-{high:0width$}]{behind}")
                })
                .collect();
            let names = HostList::expand(&lists.join(",")).unwrap();
            let blocks = of(&match written_out {
                true => names.join(","),
                false => lists.join(","),
            });
            let found = |name: &str| covering(name).iter().any(|block| blocks.contains(block));
            for name in names.iter().chain([&asked]) {
                prop_assert_eq!(found(name), names.contains(name), "{}", name);
            }
            // Together they are these nodes, each exactly once.
            let list: Vec<&str> = blocks.iter().map(String::as_str).collect();
            let mut back = HostList::expand(&list.join(",")).unwrap();
            back.sort();
            let names: BTreeSet<String> = names.into_iter().collect();
            prop_assert_eq!(back, names.into_iter().collect::<Vec<_>>());
        }

        #[test]
        fn a_list_is_read_if_it_can_be_expanded(list in "(n|\\[|\\]|,|-|0|1|9| |x){0,12}") {
            let mut found = BlockBuilder::default();
            found.add_list(&list);
            prop_assert_eq!(found.unread, HostList::expand(&list).is_err());
            let blocks = found.blocks();
            if let Ok(names) = HostList::expand(&list) {
                for name in names.iter().filter(|name| is_single_node(name)) {
                    prop_assert!(covering(name).iter().any(|block| blocks.contains(block)), "{}", name);
                }
            }
        }
    }
}
