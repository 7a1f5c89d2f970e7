//! Versions of slurmrestd's API, detected from its own list of paths.
//!
//! They have to be detected: a release serves three or four versions, an administrator may load fewer plugins, and paths end in a slash or
//! not (24.11 lists `/jobs/`, 22.05 `/jobs`).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::LazyLock;

use serde::{Deserialize, de::IgnoredAny};

/// Supported versions (`v0.0.NN`). v0.0.39 is not: no release serves only it.
const SUPPORTED: [RangeInclusive<u32>; 2] = [36..=38, 40..=45];
/// The supported versions, for messages.
pub(super) static NEEDED: LazyLock<String> = LazyLock::new(|| {
    let text =
        |range: RangeInclusive<u32>| format!("v0.0.{} to v0.0.{}", range.start(), range.end());
    SUPPORTED.map(text).join(" or ")
});

/// The daemon that answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// slurmctld, under `/slurm`.
    Controller,
    /// slurmdbd, under `/slurmdb`.
    Accounting,
}

impl Family {
    const fn prefix(self) -> &'static str {
        match self {
            Self::Controller => "/slurm/",
            Self::Accounting => "/slurmdb/",
        }
    }
}

/// The paths that a slurmrestd serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Api {
    paths: BTreeSet<String>,
}

impl Api {
    /// From its OpenAPI document; `None` if that has no paths.
    pub(super) fn read(document: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct Document {
            paths: BTreeMap<String, IgnoredAny>,
        }
        let document: Document = serde_json::from_slice(document).ok()?;
        let paths: BTreeSet<String> = document.paths.into_keys().collect();
        (!paths.is_empty()).then_some(Self { paths })
    }

    /// The newest supported version that it serves for these queries.
    pub(super) fn version(&self, family: Family) -> Option<u32> {
        let mut newest_first = SUPPORTED.into_iter().flatten().rev();
        newest_first.find(|version| {
            let prefix = format!("{}v0.0.{version}/", family.prefix());
            self.under(&prefix).next().is_some()
        })
    }

    /// The path of a query in that version, as it is listed.
    pub(super) fn path(&self, family: Family, question: &str) -> Option<String> {
        let version = self.version(family)?;
        let path = format!("{}v0.0.{version}/{question}", family.prefix());
        [path.clone(), format!("{path}/")]
            .into_iter()
            .find(|path| self.paths.contains(path))
    }

    /// The versions it serves, for messages.
    pub(super) fn served(&self, family: Family) -> String {
        let versions: BTreeSet<&str> = self
            .under(family.prefix())
            .filter_map(|path| path[family.prefix().len()..].split('/').next())
            .collect();
        match versions.is_empty() {
            true => format!("nothing under {}", family.prefix()),
            false => versions.into_iter().collect::<Vec<_>>().join(", "),
        }
    }

    fn under<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a String> {
        self.paths
            .range(prefix.to_owned()..)
            .take_while(move |path| path.starts_with(prefix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn api(paths: &[&str]) -> Api {
        let paths: serde_json::Map<_, _> = paths
            .iter()
            .map(|path| ((*path).to_owned(), serde_json::json!({})))
            .collect();
        Api::read(serde_json::json!({ "paths": paths }).to_string().as_bytes()).unwrap()
    }

    #[test]
    fn the_newest_version_that_is_served_and_read_is_taken() {
        let api = api(&[
            "/openapi/v3",
            "/slurm/v0.0.9/jobs",
            "/slurm/v0.0.39/jobs",
            "/slurm/v0.0.42/jobs/",
            "/slurm/v0.0.42/job/{job_id}",
            "/slurm/v0.0.46/jobs/",
            "/slurmdb/v0.0.38/jobs",
        ]);
        let path = |family, question| api.path(family, question);
        assert_eq!(
            path(Family::Controller, "jobs").as_deref(),
            Some("/slurm/v0.0.42/jobs/")
        );
        assert_eq!(
            path(Family::Accounting, "jobs").as_deref(),
            Some("/slurmdb/v0.0.38/jobs")
        );
        assert_eq!(path(Family::Controller, "jobs/state"), None);
        assert_eq!(
            api.served(Family::Controller),
            "v0.0.39, v0.0.42, v0.0.46, v0.0.9"
        );
        assert_eq!(Api::read(b"{}"), None);
        assert_eq!(Api::read(b"{\"paths\":{}}"), None);
    }

    #[test]
    fn a_server_of_other_versions_is_not_guessed_at() {
        assert_eq!(*NEEDED, "v0.0.36 to v0.0.38 or v0.0.40 to v0.0.45");
        let api = api(&["/slurm/v0.0.39/jobs", "/slurm/v0.0.46/jobs/"]);
        assert_eq!(api.version(Family::Controller), None);
        assert_eq!(api.path(Family::Controller, "jobs"), None);
        assert_eq!(api.served(Family::Accounting), "nothing under /slurmdb/");
    }
}
