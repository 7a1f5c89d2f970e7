//! Converts the serde types into a price book and collects all faults.

use std::collections::BTreeMap;
use std::path::Path;

use num_traits::{One as _, Signed as _};
use sha2::{Digest as _, Sha256};
use toml::{Spanned, Value};

use super::file::{
    BillingFile, BookFile, FactorFile, NodeTypeFile, PartitionFile, WeightsFile, beside,
};
use super::prices::{prices, schedule};
use super::value::Faults;
use super::{Charge, FactorKey, Fault, NodeSelector, NodeType, PriceBook, Prices};
use crate::domain::money::fraction;
use crate::domain::rates::{Rate, RatePeriod};
use crate::domain::{Capacity, Exact, RateSchedule, ShareRule, Weights};

/// Reads a book. Its series files are relative to `folder`.
pub(super) fn read(text: &str, folder: Option<&Path>) -> Result<PriceBook, Vec<Fault>> {
    let mut faults = Faults::new(text);
    let file: BookFile = match toml::from_str(text) {
        Ok(file) => file,
        Err(error) => {
            faults.add(error.span().unwrap_or_default(), "", error.message());
            return Err(faults.found);
        }
    };
    let series = file
        .node_type
        .iter()
        .flat_map(|node_type| &node_type.get_ref().series);
    let series_files: Vec<_> = series
        .filter_map(|series| series.get_ref().file.as_ref())
        .map(|file| beside(folder, file.get_ref()))
        .collect();
    let content = match series_files.is_empty() {
        false => with_series(text, folder),
        true => text.to_owned(),
    };
    let book = PriceBook {
        text_digest: digest(text),
        digest: digest(&content),
        content,
        series_files,
        ..book(file, folder, &mut faults)
    };
    if faults.found.is_empty() {
        Ok(book)
    } else {
        Err(faults.found)
    }
}

fn book(file: BookFile, folder: Option<&Path>, faults: &mut Faults<'_>) -> PriceBook {
    for (key, text) in [("name", &file.name), ("version", &file.version)] {
        if text.get_ref().trim().is_empty() {
            faults.add(
                text.span(),
                key,
                "must not be empty; cost events contain it",
            );
        }
    }
    let currency = file.currency.get_ref();
    if currency.len() != 3 || !currency.bytes().all(|byte| byte.is_ascii_uppercase()) {
        faults.add(
            file.currency.span(),
            "currency",
            format!("{currency:?} is not an ISO 4217 code such as \"EUR\""),
        );
    }
    let charge = charge(&file, faults);
    let node_types = node_types(&file.node_type, &charge, folder, faults);
    let partition_prices = partition_prices(&file.partition, &node_types, faults);
    let mut spot = Vec::new();
    for rule in &file.spot {
        let place = place(
            "spot",
            rule.get_ref().nodes.as_ref(),
            rule.get_ref().partitions.as_ref(),
            faults,
        );
        if place.precision() == (false, false) {
            faults.add(rule.span(), "spot", "has neither `nodes` nor `partitions`");
        }
        spot.push(place);
    }
    let factors = factors(&file.factor, faults);
    PriceBook {
        name: file.name.into_inner(),
        version: file.version.into_inner(),
        currency: file.currency.into_inner(),
        charge,
        text_digest: String::new(),
        digest: String::new(),
        content: String::new(),
        series_files: Vec::new(),
        factors,
        node_types,
        partition_prices,
        spot,
    }
}

/// The text with the contents of its series files, so that it can be read without them. Unreadable files are reported elsewhere.
fn with_series(text: &str, folder: Option<&Path>) -> String {
    let mut content = text.parse::<toml::Table>().unwrap_or_default();
    let node_types = content.get_mut("node_type").and_then(Value::as_array_mut);
    let series = node_types
        .into_iter()
        .flatten()
        .filter_map(|node_type| node_type.get_mut("series")?.as_array_mut())
        .flatten()
        .filter_map(Value::as_table_mut);
    for series in series {
        let path = series.get("file").and_then(Value::as_str);
        let path = path.map(|path| beside(folder, path));
        if let Some(csv) = path.and_then(|path| std::fs::read_to_string(path).ok()) {
            series.remove("file");
            series.insert("csv".to_owned(), Value::String(csv));
        }
    }
    content.to_string()
}

/// Surcharges and discounts.
fn factors(files: &[Spanned<FactorFile>], faults: &mut Faults<'_>) -> BTreeMap<FactorKey, Exact> {
    let mut found = BTreeMap::new();
    for file in files {
        let (span, file) = (file.span(), file.get_ref());
        let name =
            |name: &Option<Spanned<String>>| name.as_ref().map(|name| name.get_ref().clone());
        let keys: Vec<FactorKey> = [
            name(&file.qos).map(FactorKey::Qos),
            name(&file.partition).map(FactorKey::Partition),
            name(&file.account).map(FactorKey::Account),
        ]
        .into_iter()
        .flatten()
        .collect();
        let [key] = keys.as_slice() else {
            let problem = "has not exactly one of `qos`, `partition` and `account`";
            faults.add(span, "factor", problem);
            continue;
        };
        let before = faults.found.len();
        let factor = faults.weight("factor.factor", Some(&file.factor));
        if faults.found.len() > before {
            continue;
        }
        if !factor.is_positive() {
            let problem = "is not above 0: such runs would appear to be free";
            faults.add(file.factor.span(), "factor.factor", problem);
        }
        if found.insert(key.clone(), factor).is_some() {
            faults.add(span, "factor", format!("{key} has another factor"));
        }
    }
    found
}

/// Digest of the keys in alphabetical order with their values, independent of comments and layout.
fn digest(text: &str) -> String {
    let content = text.parse::<toml::Table>().unwrap_or_default();
    hex::encode(Sha256::digest(content.to_string()))
}

fn charge(file: &BookFile, faults: &mut Faults<'_>) -> Charge {
    let value_text = file
        .mode
        .as_ref()
        .map_or(ShareRule::default().as_str(), |mode| mode.get_ref());
    let mode_span = file.mode.as_ref().map_or(0..0, Spanned::span);
    if value_text == "billing" {
        if file.billing.is_empty() {
            faults.add(
                mode_span,
                "mode",
                "mode \"billing\" needs a [[billing]] price",
            );
        }
        return Charge::Billing(billing(&file.billing, faults));
    }
    if let Some(price) = file.billing.first() {
        faults.add(
            price.span(),
            "billing",
            "only mode \"billing\" has billing prices",
        );
    }
    if file.node_type.is_empty() {
        faults.add(
            mode_span.clone(),
            "node_type",
            "the book has no [[node_type]]",
        );
    }
    let mode = ShareRule::from_name(value_text).unwrap_or_else(|| {
        faults.add(
            mode_span,
            "mode",
            format!("{value_text:?} is not one of max_share, weighted_share, whole_node, billing"),
        );
        ShareRule::default()
    });
    Charge::Nodes(mode)
}

fn billing(prices: &[Spanned<BillingFile>], faults: &mut Faults<'_>) -> RateSchedule {
    let mut periods = Vec::new();
    for price in prices.iter().map(Spanned::get_ref) {
        let rate = faults.rate("billing.price", &price.price);
        let from = faults.time("billing.from", price.from.as_ref());
        let to = faults.time("billing.to", price.to.as_ref());
        periods.extend(rate.map(|per_hour| {
            let rate = Rate::flat(per_hour);
            (price.price.span(), RatePeriod { from, to, rate })
        }));
    }
    schedule("billing.price", periods, faults)
}

fn node_types(
    files: &[Spanned<NodeTypeFile>],
    charge: &Charge,
    folder: Option<&Path>,
    faults: &mut Faults<'_>,
) -> Vec<NodeType> {
    let mut found: Vec<NodeType> = Vec::new();
    for file in files {
        let file = file.get_ref();
        let name = file.name.get_ref();
        if name.is_empty() || found.iter().any(|other| other.name == *name) {
            faults.add(
                file.name.span(),
                "node_type.name",
                format!("{name:?} is empty or duplicate"),
            );
        }
        let place = place(
            "node_type",
            file.nodes.as_ref(),
            file.partitions.as_ref(),
            faults,
        );
        if let Some(other) = found.iter().find(|other| other.place.collides_with(&place)) {
            let span = file
                .nodes
                .as_ref()
                .or(file.partitions.as_ref())
                .map_or(file.name.span(), Spanned::span);
            faults.add(
                span,
                "node_type",
                format!("{name:?} and {:?} cover the same nodes", other.name),
            );
        }
        let capacity = capacity(file, charge, faults);
        let weights = file
            .weights
            .as_ref()
            .and_then(|weights| self::weights(weights, faults));
        if file.weights.is_none() && *charge == Charge::Nodes(ShareRule::WeightedShare) {
            faults.add(
                file.name.span(),
                "node_type.weights",
                format!("{name:?} has none; mode weighted_share needs them"),
            );
        }
        if file.price.is_empty() && file.series.is_empty() && !matches!(charge, Charge::Billing(_))
        {
            faults.add(
                file.name.span(),
                "node_type.price",
                format!("{name:?} has no price"),
            );
        }
        let prices = prices("node_type.price", &file.price, &file.series, folder, faults);
        found.push(NodeType {
            name: name.clone(),
            place,
            capacity,
            weights,
            prices,
        });
    }
    found
}

/// Shares require the capacity of a node. GPUs may be missing, CPUs and memory may not.
fn capacity(file: &NodeTypeFile, charge: &Charge, faults: &mut Faults<'_>) -> Capacity {
    let needed = matches!(
        charge,
        Charge::Nodes(ShareRule::MaxShare | ShareRule::WeightedShare)
    );
    for (key, value) in [("node_type.cpu", &file.cpu), ("node_type.mem", &file.mem)] {
        if needed && value.is_none() {
            faults.add(
                file.name.span(),
                key,
                format!(
                    "missing; shares of {:?} cannot be computed without it",
                    file.name.get_ref()
                ),
            );
        }
    }
    Capacity {
        cpu: file
            .cpu
            .as_ref()
            .and_then(|value| faults.count("node_type.cpu", value))
            .unwrap_or_default(),
        mem_mib: file
            .mem
            .as_ref()
            .and_then(|value| faults.memory("node_type.mem", value))
            .unwrap_or_default(),
        gpu: file
            .gpu
            .as_ref()
            .and_then(|value| faults.count("node_type.gpu", value))
            .unwrap_or_default(),
    }
}

fn weights(file: &Spanned<WeightsFile>, faults: &mut Faults<'_>) -> Option<Weights> {
    let before = faults.found.len();
    let (span, file) = (file.span(), file.get_ref());
    let cpu = faults.weight("node_type.weights.cpu", file.cpu.as_ref());
    let mem = faults.weight("node_type.weights.mem", file.mem.as_ref());
    let gpu = faults.weight("node_type.weights.gpu", file.gpu.as_ref());
    let sum: Exact = &cpu + &mem + &gpu;
    if faults.found.len() == before && !sum.is_one() {
        faults.add(
            span,
            "node_type.weights",
            format!("add up to {}, not to 1", fraction(&sum)),
        );
    }
    Some(Weights { cpu, mem, gpu })
}

fn partition_prices(
    files: &[Spanned<PartitionFile>],
    node_types: &[NodeType],
    faults: &mut Faults<'_>,
) -> BTreeMap<(String, String), Prices> {
    let mut found = BTreeMap::new();
    for file in files.iter().map(Spanned::get_ref) {
        let (name, node_type) = (file.name.get_ref(), file.node_type.get_ref());
        if !node_types.iter().any(|known| known.name == *node_type) {
            faults.add(
                file.node_type.span(),
                "partition.node_type",
                format!("there is no node type {node_type:?}"),
            );
        }
        if file.price.is_empty() {
            faults.add(
                file.name.span(),
                "partition.price",
                format!("partition {name:?} has no price"),
            );
        }
        let prices = prices("partition.price", &file.price, &[], None, faults);
        if found
            .insert((name.clone(), node_type.clone()), prices)
            .is_some()
        {
            faults.add(
                file.name.span(),
                "partition",
                format!("partition {name:?} with node type {node_type:?} is duplicate"),
            );
        }
    }
    found
}

fn place(
    key: &str,
    nodes: Option<&Spanned<Value>>,
    partitions: Option<&Spanned<Value>>,
    faults: &mut Faults<'_>,
) -> NodeSelector {
    NodeSelector {
        nodes: nodes.map(|value| faults.hosts(&format!("{key}.nodes"), value)),
        partitions: partitions.map(|value| faults.names(&format!("{key}.partitions"), value)),
    }
}
