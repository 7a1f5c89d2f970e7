//! Serde types of the file. Values keep their position in the text, so that faults found later can name the line.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::{Spanned, Value};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BookFile {
    pub name: Spanned<String>,
    pub version: Spanned<String>,
    pub currency: Spanned<String>,
    pub mode: Option<Spanned<String>>,
    #[serde(default)]
    pub node_type: Vec<Spanned<NodeTypeFile>>,
    #[serde(default)]
    pub partition: Vec<Spanned<PartitionFile>>,
    #[serde(default)]
    pub spot: Vec<Spanned<SpotFile>>,
    #[serde(default)]
    pub billing: Vec<Spanned<BillingFile>>,
    #[serde(default)]
    pub factor: Vec<Spanned<FactorFile>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NodeTypeFile {
    pub name: Spanned<String>,
    pub nodes: Option<Spanned<Value>>,
    pub partitions: Option<Spanned<Value>>,
    pub cpu: Option<Spanned<Value>>,
    pub mem: Option<Spanned<Value>>,
    pub gpu: Option<Spanned<Value>>,
    pub weights: Option<Spanned<WeightsFile>>,
    #[serde(default)]
    pub price: Vec<Spanned<PriceFile>>,
    #[serde(default)]
    pub series: Vec<Spanned<SeriesFile>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SeriesFile {
    pub market: Spanned<String>,
    pub file: Option<Spanned<String>>,
    /// Content of the file, in stored books.
    pub csv: Option<Spanned<String>>,
    pub zone: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FactorFile {
    pub qos: Option<Spanned<String>>,
    pub partition: Option<Spanned<String>>,
    pub account: Option<Spanned<String>>,
    pub factor: Spanned<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WeightsFile {
    pub cpu: Option<Spanned<Value>>,
    pub mem: Option<Spanned<Value>>,
    pub gpu: Option<Spanned<Value>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PriceFile {
    pub on_demand: Option<Spanned<Value>>,
    pub spot: Option<Spanned<Value>>,
    pub market: Option<Spanned<String>>,
    pub list: Option<Spanned<Value>>,
    pub effective: Option<Spanned<Value>>,
    pub when: Option<Spanned<String>>,
    pub timezone: Option<Spanned<String>>,
    pub from: Option<Spanned<Value>>,
    pub to: Option<Spanned<Value>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PartitionFile {
    pub name: Spanned<String>,
    pub node_type: Spanned<String>,
    #[serde(default)]
    pub price: Vec<Spanned<PriceFile>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SpotFile {
    pub nodes: Option<Spanned<Value>>,
    pub partitions: Option<Spanned<Value>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BillingFile {
    pub price: Spanned<Value>,
    pub from: Option<Spanned<Value>>,
    pub to: Option<Spanned<Value>>,
}

/// Path of a series file, which is relative to the book.
pub(super) fn beside(folder: Option<&Path>, file: &str) -> PathBuf {
    folder.unwrap_or(Path::new("")).join(file)
}
