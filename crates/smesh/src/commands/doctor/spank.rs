//! Check of the SPANK plugin: whether Slurm loads it on this host, and whether it was built for this Slurm.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::{CheckResult, Finding};
use crate::slurm_conf::SlurmConf;

const FILE: &str = "mesh_spank.so";
/// In the plugin, before the version that it was built for: one byte each for major, minor and micro (hooks/spank/mesh_spank.c).
const MARK: &[u8; 32] = b"slurm-mesh: built for Slurm\0\0\0\0\0";
/// Limit of nested includes, so that a file that includes itself ends.
const MAX_DEPTH: u32 = 8;
const BUILD: &str =
    "build it for this Slurm: `make -C hooks/spank install`, on each node and submit host";

/// Without `--mesh-notify` nobody misses the plugin. `version`: of Slurm on this host.
pub(super) fn plugin(conf: &SlurmConf, version: Option<&str>) -> Finding {
    let finding = |grade, found: String, fix: &str| Finding::new("spank", grade, found, fix);
    let stack = match conf.get("PlugStackConfig") {
        Some(path) => PathBuf::from(path),
        // Default of slurm.conf(5), 22.05 to 26.05.
        None => conf.path.with_file_name("plugstack.conf"),
    };
    let mut lines = Vec::new();
    if let Err(error) = read(&stack, &mut lines, MAX_DEPTH)
        && error.kind() != ErrorKind::NotFound
    {
        let found = format!("{}: {error}", stack.display());
        return finding(CheckResult::Unknown, found, "run doctor as root");
    }
    let Some(line) = lines.iter().find(|line| line.is_ours()) else {
        let found = format!(
            "{} has no {FILE}: no --mesh-notify, which is optional",
            stack.display()
        );
        return finding(CheckResult::Good, found, "");
    };
    let folders = conf.get("PluginDir").unwrap_or("/usr/lib/slurm");
    let Some(path) = line.file(folders) else {
        let found = format!("{FILE} is in {}, but not in {folders}", stack.display());
        return finding(line.without_plugin(), found, BUILD);
    };
    let built_for = match std::fs::read(&path) {
        Ok(bytes) => built_for(&bytes),
        Err(error) => {
            let found = format!("{}: {error}", path.display());
            return finding(CheckResult::Unknown, found, "run doctor as root");
        }
    };
    let path = path.display();
    let Some(built_for) = built_for else {
        let found = format!("{path} does not say for which Slurm it was built");
        return finding(CheckResult::Warning, found, BUILD);
    };
    match version {
        None => finding(
            CheckResult::Unknown,
            format!("{path} is built for Slurm {built_for}; the version of Slurm is unknown"),
            "",
        ),
        Some(version) if release(version) != release(&built_for) => finding(
            line.without_plugin(),
            format!("{path} is built for Slurm {built_for}, which Slurm {version} does not load"),
            BUILD,
        ),
        Some(_) if !line.is_optional => finding(
            CheckResult::Warning,
            format!(
                "{path} is `required` in {}: jobs fail without it",
                stack.display()
            ),
            "write `optional`, and restart slurmd",
        ),
        Some(version) => finding(
            CheckResult::Good,
            format!("{path} is built for Slurm {built_for}, Slurm {version} loads it"),
            "",
        ),
    }
}

/// A plugin of plugstack.conf.
struct PluginLine {
    is_optional: bool,
    path: PathBuf,
}

impl PluginLine {
    /// `required` or `optional`, the plugin and its arguments (spank(8), 22.05).
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let is_optional = match words.next()? {
            "optional" => true,
            "required" => false,
            _ => return None,
        };
        let path = words.next()?.into();
        Some(Self { is_optional, path })
    }

    fn is_ours(&self) -> bool {
        self.path.file_name().is_some_and(|name| name == FILE)
    }

    /// The file. Without a folder it is in `PluginDir`, which may be several.
    fn file(&self, folders: &str) -> Option<PathBuf> {
        let mut places = folders
            .split(':')
            .map(|folder| Path::new(folder).join(&self.path));
        places.find(|path| path.is_file())
    }

    /// How bad it is if Slurm does not load it: a `required` plugin fails all jobs.
    fn without_plugin(&self) -> CheckResult {
        match self.is_optional {
            true => CheckResult::Warning,
            false => CheckResult::Bad,
        }
    }
}

/// Reads plugstack.conf with what it includes.
fn read(path: &Path, lines: &mut Vec<PluginLine>, depth: u32) -> std::io::Result<()> {
    let text = std::fs::read_to_string(path)?;
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        match (line.strip_prefix("include "), depth.checked_sub(1)) {
            (Some(pattern), Some(depth)) => {
                let folder = path.parent().unwrap_or(Path::new("/"));
                for file in matching(&folder.join(pattern.trim())) {
                    read(&file, lines, depth)?;
                }
            }
            _ => lines.extend(PluginLine::parse(line)),
        }
    }
    Ok(())
}

/// The files of an include, in order: one, or all with an ending, as in Debian's `plugstack.conf.d/*.conf`.
fn matching(pattern: &Path) -> Vec<PathBuf> {
    let name = pattern.file_name().unwrap_or_default().to_string_lossy();
    let Some((start, end)) = name.split_once('*') else {
        return vec![pattern.to_owned()];
    };
    let entries = pattern.parent().and_then(|folder| folder.read_dir().ok());
    let paths = entries
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    let mut found: Vec<PathBuf> = paths
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let rest = name.strip_prefix(start);
            rest.is_some_and(|rest| rest.ends_with(end))
        })
        .collect();
    found.sort();
    found
}

/// The version for which a plugin was built: `22.05.8`.
fn built_for(plugin: &[u8]) -> Option<String> {
    let at = plugin.windows(MARK.len()).position(|bytes| bytes == MARK)?;
    let version = plugin.get(at + MARK.len()..at + MARK.len() + 3)?;
    match version {
        [major, minor, micro] => Some(format!("{major}.{minor:02}.{micro}")),
        _ => None,
    }
}

/// `22.05` of `22.05.8`. Slurm compares only this of a SPANK plugin (seen with 22.05.8, 24.11.5 and 26.05.5).
fn release(version: &str) -> (&str, &str) {
    let mut parts = version.split('.');
    let mut part = || parts.next().unwrap_or_default();
    (part(), part())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Host(tempfile::TempDir);

    impl Host {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn write(&self, name: &str, text: impl AsRef<[u8]>) {
            let path = self.0.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }

        fn check(&self, version: Option<&str>) -> (CheckResult, String) {
            let folder = self.0.path();
            let text = format!("PluginDir=/nonexistent:{}/lib\n", folder.display());
            self.write("slurm.conf", text);
            let conf = SlurmConf::read(&folder.join("slurm.conf")).unwrap();
            let finding = plugin(&conf, version);
            (finding.grade, finding.found)
        }
    }

    fn built(version: [u8; 3]) -> Vec<u8> {
        [b"\x7fELF".as_slice(), MARK, &version, b"rest"].concat()
    }

    #[test]
    fn the_plugin_is_found_where_slurm_looks_and_its_release_is_compared() {
        let host = Host::new();
        let (grade, found) = host.check(Some("22.05.8"));
        assert_eq!(grade, CheckResult::Good, "{found}");
        assert!(found.contains("optional"), "{found}");
        host.write("plugstack.conf", "include plugstack.conf.d/*.conf\n");
        host.write("plugstack.conf.d/other.conf", "required /site/other.so\n");
        host.write("plugstack.conf.d/README", "optional mesh_spank.so\n");
        assert_eq!(host.check(Some("22.05.8")).0, CheckResult::Good);
        host.write(
            "plugstack.conf.d/mesh.conf",
            "# ours\noptional mesh_spank.so socket=/run/x\n",
        );
        let (grade, found) = host.check(Some("22.05.8"));
        assert_eq!(grade, CheckResult::Warning, "{found}");
        assert!(found.contains("not in"), "{found}");
        for (version, expected) in [
            ([22, 5, 8], CheckResult::Good),
            ([22, 5, 7], CheckResult::Good),
            ([22, 4, 8], CheckResult::Warning),
            ([24, 11, 5], CheckResult::Warning),
        ] {
            host.write("lib/mesh_spank.so", built(version));
            let (grade, found) = host.check(Some("22.05.8"));
            assert_eq!(grade, expected, "{found}");
        }
        assert_eq!(host.check(None).0, CheckResult::Unknown);
        host.write("lib/mesh_spank.so", "of an older version");
        assert_eq!(host.check(Some("22.05.8")).0, CheckResult::Warning);
        // A required plugin that Slurm does not load fails every job.
        host.write("plugstack.conf.d/mesh.conf", "required mesh_spank.so\n");
        for (version, expected) in [
            ([24, 11, 5], CheckResult::Bad),
            ([22, 5, 8], CheckResult::Warning),
        ] {
            host.write("lib/mesh_spank.so", built(version));
            let (grade, found) = host.check(Some("22.05.8"));
            assert_eq!(grade, expected, "{found}");
        }
    }
}
