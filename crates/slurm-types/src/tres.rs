//! Trackable resources: `cpu=4,mem=8G,node=1,billing=4,gres/gpu:a100=1`.

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// Amounts by resource name. Memory, virtual memory and burst buffers are in MiB, everything else is a plain count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tres(BTreeMap<String, u64>);

/// The text is not a list of resources.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("read resources {text:?}: expected name=count, got {item:?}")]
pub struct ParseTresError {
    text: String,
    item: String,
}

impl Tres {
    /// Amount of a resource by Slurm's name (`gres/gpu`), if it is listed.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.0.get(name).copied()
    }

    /// Sets one amount.
    pub fn set(&mut self, name: impl Into<String>, amount: u64) {
        self.0.insert(name.into(), amount);
    }

    /// CPUs; 0 if not listed.
    pub fn cpus(&self) -> u64 {
        self.get("cpu").unwrap_or(0)
    }

    /// Memory in MiB; `None` where memory is not a consumable resource.
    pub fn mem_mib(&self) -> Option<u64> {
        self.get("mem")
    }

    /// Nodes; 0 if not listed.
    pub fn nodes(&self) -> u64 {
        self.get("node").unwrap_or(0)
    }

    /// Billing units, truncated to an integer by Slurm.
    pub fn billing(&self) -> Option<u64> {
        self.get("billing")
    }

    /// GPUs: `gres/gpu`, or the sum of the typed ones (`gres/gpu:a100`) where the site tracks only types.
    pub fn gpus(&self) -> u64 {
        self.get("gres/gpu").unwrap_or_else(|| {
            self.0
                .iter()
                .filter(|(name, _)| name.starts_with("gres/gpu:"))
                .fold(0, |sum, (_, count)| sum.saturating_add(*count))
        })
    }

    /// All amounts with their names, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(name, amount)| (name.as_str(), *amount))
    }

    /// True if nothing is listed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Parses the valid items and returns the invalid ones beside them. For output of Slurm, where one odd item must not cost the whole
    /// record.
    pub fn parse_lossy(text: &str) -> (Self, Vec<String>) {
        let (mut tres, mut odd) = (Self::default(), Vec::new());
        for item in items(text) {
            match parse_item(item) {
                Some((name, amount)) => tres.set(name, amount),
                None => odd.push(item.to_owned()),
            }
        }
        (tres, odd)
    }
}

impl FromStr for Tres {
    type Err = ParseTresError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match Self::parse_lossy(text) {
            (tres, odd) if odd.is_empty() => Ok(tres),
            (_, odd) => Err(ParseTresError {
                text: text.chars().take(128).collect(),
                item: odd.into_iter().next().unwrap_or_default(),
            }),
        }
    }
}

impl fmt::Display for Tres {
    /// Slurm's usual order: cpu, mem, node, billing, then the others by name. Memory as whole MiB (`mem=8192M`), so nothing is lost.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const FIRST: [&str; 4] = ["cpu", "mem", "node", "billing"];
        let first = FIRST.iter().filter_map(|name| self.0.get_key_value(*name));
        let others = self
            .0
            .iter()
            .filter(|(name, _)| !FIRST.contains(&name.as_str()));
        let mut separator = "";
        for (name, amount) in first.chain(others) {
            write!(
                f,
                "{separator}{name}={amount}{}",
                if is_mebibytes(name) { "M" } else { "" }
            )?;
            separator = ",";
        }
        Ok(())
    }
}

/// Parses an amount of memory as Slurm prints it (`100M`, `8G`, `1.50T`, `4096`; no unit is MiB), in MiB, rounded down.
pub fn parse_mem_mib(text: &str) -> Option<u64> {
    let (number, unit) = split_unit(text.trim())?;
    // Computed in KiB, so that `512K` stays exact, then rounded down to MiB.
    let kib_per_unit: u64 = match unit {
        None | Some('M') => 1 << 10,
        Some('K') => 1,
        Some('G') => 1 << 20,
        Some('T') => 1 << 30,
        Some('P') => 1 << 40,
        Some('E') => 1 << 50,
        Some(_) => return None,
    };
    Some(scaled(number, kib_per_unit)? >> 10)
}

fn is_mebibytes(name: &str) -> bool {
    name == "mem" || name == "vmem" || name.starts_with("bb/")
}

fn items(text: &str) -> impl Iterator<Item = &str> {
    let trimmed = text.trim();
    let nothing = matches!(trimmed, "(null)" | "N/A" | "None");
    trimmed
        .split(',')
        .map(str::trim)
        .filter(move |item| !nothing && !item.is_empty())
}

fn parse_item(item: &str) -> Option<(&str, u64)> {
    let (name, amount) = item.rsplit_once('=')?;
    if name.is_empty() {
        return None;
    }
    let amount = match is_mebibytes(name) {
        true => parse_mem_mib(amount)?,
        false => {
            let (number, unit) = split_unit(amount)?;
            // `convert_num_unit` divides plain counts by 1024, too.
            let power = match unit {
                None => 0,
                Some(unit) => "KMGTPE".find(unit)? as u32 + 1,
            };
            scaled(number, 1_u64 << (10 * power))?
        }
    };
    Some((name, amount))
}

fn split_unit(text: &str) -> Option<(&str, Option<char>)> {
    let unit = text
        .chars()
        .next_back()
        .filter(char::is_ascii_alphabetic)
        .map(|unit| unit.to_ascii_uppercase());
    let number = &text[..text.len() - usize::from(unit.is_some())];
    (!number.is_empty()).then_some((number, unit))
}

/// A decimal number times a factor, rounded down, without floats.
fn scaled(number: &str, factor: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > 9 {
        return None;
    }
    let mut amount = u128::from(whole.parse::<u64>().ok()?) * u128::from(factor);
    if !fraction.is_empty() {
        let tenths = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
        amount += u128::from(fraction.parse::<u64>().ok()?) * u128::from(factor) / tenths;
    }
    u64::try_from(amount).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts_of_real_clusters_are_read() {
        let tres: Tres = "cpu=4,mem=8G,node=1,billing=4,gres/gpu=1,gres/gpu:a100=1"
            .parse()
            .unwrap();
        assert_eq!(
            (tres.cpus(), tres.mem_mib(), tres.nodes(), tres.gpus()),
            (4, Some(8192), 1, 1)
        );
        assert_eq!(tres.get("gres/gpu:a100"), Some(1));
        assert_eq!(
            tres.to_string(),
            "cpu=4,mem=8192M,node=1,billing=4,gres/gpu=1,gres/gpu:a100=1"
        );
        assert!("(null)".parse::<Tres>().unwrap().is_empty());
        assert!("".parse::<Tres>().unwrap().is_empty());
        assert_eq!(
            "gres/gpu:a=2,gres/gpu:b=1".parse::<Tres>().unwrap().gpus(),
            3
        );
    }

    #[test]
    fn memory_comes_in_many_units() {
        for (text, mib) in [
            ("100M", 100),
            ("8G", 8192),
            ("1.50T", 1_572_864),
            ("4096", 4096),
            ("512K", 0),
            ("2048K", 2),
        ] {
            assert_eq!(parse_mem_mib(text), Some(mib), "{text}");
        }
        for text in ["", "M", "1.2.3G", "-1G", "1X", "G1", "é"] {
            assert_eq!(parse_mem_mib(text), None, "{text}");
        }
    }

    #[test]
    fn odd_items_are_returned_not_lost() {
        let (tres, odd) = Tres::parse_lossy("cpu=4,what,mem=lots");
        assert_eq!(tres.cpus(), 4);
        assert_eq!(odd, ["what", "mem=lots"]);
        assert!("cpu=4,what".parse::<Tres>().is_err());
    }

    proptest! {
        #[test]
        fn format_then_parse_is_identity(
            amounts in proptest::collection::btree_map("cpu|mem|node|billing|vmem|energy|gres/[a-z]{1,5}(:[a-z0-9]{1,4})?", 0_u64..1 << 40, 0..8),
        ) {
            let tres = Tres(amounts);
            prop_assert_eq!(tres.to_string().parse::<Tres>(), Ok(tres));
        }

        #[test]
        fn any_text_is_survived(text in ".*") {
            let _ = (Tres::parse_lossy(&text), Tres::parse_lossy(&format!("cpu={text}")), parse_mem_mib(&text));
        }
    }
}
