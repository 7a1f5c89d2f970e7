//! Parses slurm.conf, for commands that must work while Slurm is down: single parameters with includes, and NodeName lines. Not
//! partitions.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// Paths used by Slurm's packages.
const PLACES: &[&str] = &[
    "/etc/slurm/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
    "/usr/local/etc/slurm.conf",
];
/// Parameters of which newer versions accept several, one per line.
const SEVERAL: &[&str] = &["prolog", "epilog", "prologslurmctld", "epilogslurmctld"];
/// Limit of nested includes, so that a file that includes itself ends.
const MAX_DEPTH: u32 = 8;

/// Parameters of a slurm.conf. Their names are case-insensitive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlurmConf {
    /// Path of the file.
    pub path: PathBuf,
    values: BTreeMap<String, String>,
    /// The NodeName lines.
    pub nodes: Vec<NodeLine>,
}

/// A NodeName line: nodes of the same kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeLine {
    /// Host list.
    pub names: String,
    /// CPUs per node.
    pub cpus: u64,
    /// Memory per node, in MiB.
    pub memory_mib: u64,
    /// GPUs per node.
    pub gpus: u64,
    /// GPU types as Gres names them, e.g. `gpu:a100:4`. Their cost depends on the type.
    pub gpu_types: String,
}

impl NodeLine {
    /// True if the nodes have the same resources, whatever their names.
    pub fn is_like(&self, other: &Self) -> bool {
        let offer = |line: &Self| (line.cpus, line.memory_mib, line.gpus);
        offer(self) == offer(other) && self.gpu_types == other.gpu_types
    }
}

impl NodeLine {
    /// Parses a line. Missing parameters come from `NodeName=DEFAULT` (slurm.conf(5), 22.05).
    fn new(parameters: &BTreeMap<String, String>) -> Self {
        let number = |name: &str| {
            parameters
                .get(name)
                .and_then(|value| value.parse::<u64>().ok())
        };
        let cores = number("corespersocket").unwrap_or(1) * number("threadspercore").unwrap_or(1);
        let sockets = number("sockets")
            .or_else(|| Some(number("boards")? * number("socketsperboard")?))
            .unwrap_or(1);
        // Examples: gpu:a100:4(S:0-1), gpu:4, gpu
        let gpus: Vec<&str> = parameters
            .get("gres")
            .into_iter()
            .flat_map(|gres| gres.split(','))
            .filter_map(|gres| gres.split('(').next())
            .filter(|gres| gres.split(':').next() == Some("gpu"))
            .collect();
        let count = |gpu: &&str| {
            let count = gpu.split(':').skip(1).last();
            count.map_or(1, |count| count.parse().unwrap_or(1))
        };
        Self {
            names: parameters.get("nodename").cloned().unwrap_or_default(),
            cpus: number("cpus").unwrap_or(sockets * cores),
            memory_mib: number("realmemory").unwrap_or(1),
            gpus: gpus.iter().map(count).sum(),
            gpu_types: gpus.join(","),
        }
    }
}

impl SlurmConf {
    /// Finds the file as Slurm's commands do: the one named, else `SLURM_CONF`, else the usual paths.
    ///
    /// # Errors
    /// If there is none. The text says what to do.
    pub fn find(named: Option<&Path>) -> Result<PathBuf, Error> {
        if let Some(path) = named {
            return Ok(path.to_owned());
        }
        if let Some(path) = std::env::var_os("SLURM_CONF") {
            return Ok(path.into());
        }
        PLACES
            .iter()
            .map(PathBuf::from)
            .find(|path| path.is_file())
            .ok_or_else(|| {
                Error::Failed(format!(
                    "no slurm.conf at {}; set --slurm-conf, SLURM_CONF or conf in [slurm], or run this on the host of slurmctld",
                    PLACES.join(", ")
                ))
            })
    }

    /// Reads a file and its includes.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let mut conf = Self {
            path: path.to_owned(),
            ..Self::default()
        };
        conf.take(path, &mut BTreeMap::new(), MAX_DEPTH)?;
        Ok(conf)
    }

    /// Parses the output of `scontrol show config` as if it were a file. It prints `(null)` for parameters that are not set.
    pub fn from_controller(path: &Path, printed: &BTreeMap<String, String>) -> Self {
        let mut conf = Self {
            path: path.to_owned(),
            ..Self::default()
        };
        for (name, value) in printed {
            if value.is_empty() || value == "(null)" {
                continue;
            }
            // Newer versions number parameters that may occur several times: `Prolog[0]` (24.11, 26.05).
            match name.to_lowercase().split_once('[') {
                Some((name, _)) => conf.add(name.to_owned(), value),
                None => conf.add(name.to_lowercase(), value),
            }
        }
        conf
    }

    /// Sets a parameter, or appends to one that may occur several times.
    fn add(&mut self, name: String, value: &str) {
        let name = match name.as_str() {
            "slurmctldhost" => format!("slurmctldhost[{}]", self.controllers().len()),
            _ => name,
        };
        match self.values.get_mut(&name) {
            Some(before) if SEVERAL.contains(&name.as_str()) => {
                if before.split(',').all(|other| other != value) {
                    before.push(',');
                    before.push_str(value);
                }
            }
            _ => {
                self.values.insert(name, value.to_owned());
            }
        }
    }

    /// Value of a parameter.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(&name.to_lowercase()).map(String::as_str)
    }

    /// Hosts of slurmctld, primary first.
    pub fn controllers(&self) -> Vec<String> {
        let hosts = self
            .values
            .iter()
            .filter(|(name, _)| name.starts_with("slurmctldhost["));
        // `host(address)`, slurm.conf(5).
        hosts
            .filter_map(|(_, host)| Some(host.split('(').next()?.to_owned()))
            .collect()
    }

    /// User of slurmctld. Root if not set (slurm.conf(5), 22.05). `scontrol show config` adds the uid: `slurm(64030)`.
    pub fn slurm_user(&self) -> &str {
        let user = self.get("SlurmUser").unwrap_or("root");
        user.split('(').next().unwrap_or(user)
    }

    fn take(
        &mut self,
        path: &Path,
        defaults: &mut BTreeMap<String, String>,
        depth: u32,
    ) -> Result<(), Error> {
        let text =
            std::fs::read_to_string(path).map_err(|source| Error::io("read", path, source))?;
        for line in logical_lines(&text) {
            let mut tokens = line.split_whitespace();
            let Some(first) = tokens.next() else { continue };
            if first.eq_ignore_ascii_case("include") {
                if let (Some(file), Some(depth)) = (tokens.next(), depth.checked_sub(1)) {
                    self.take(
                        &path.parent().unwrap_or(Path::new("/")).join(file),
                        defaults,
                        depth,
                    )?;
                }
                continue;
            }
            let parameters = pairs(&line)
                .into_iter()
                .map(|(name, value)| (name.to_lowercase(), value));
            // Parameters of a node or partition are not parameters of the cluster.
            match first
                .split('=')
                .next()
                .unwrap_or_default()
                .to_lowercase()
                .as_str()
            {
                "nodename" => {
                    let mut node = defaults.clone();
                    node.extend(parameters);
                    if node
                        .get("nodename")
                        .is_some_and(|name| name.eq_ignore_ascii_case("default"))
                    {
                        *defaults = node;
                    } else {
                        self.nodes.push(NodeLine::new(&node));
                    }
                }
                "partitionname" | "downnodes" | "frontendname" | "nodeset" => {}
                _ => {
                    for (name, value) in parameters {
                        self.add(name, &value);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Lines without comments. A line that ends with `\` continues on the next line.
fn logical_lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for raw in text.lines() {
        line.push_str(uncommented(raw).trim_end());
        if let Some(open) = line.strip_suffix('\\') {
            line = open.to_owned();
        } else {
            lines.push(std::mem::take(&mut line).trim().to_owned());
        }
    }
    lines.push(line.trim().to_owned());
    lines
}

/// The text before the first `#` that is not escaped as `\#`.
fn uncommented(line: &str) -> &str {
    let comment = line
        .char_indices()
        .find(|(at, c)| *c == '#' && !line[..*at].ends_with('\\'));
    comment.map_or(line, |(at, _)| &line[..at])
}

/// `Name=value` pairs. A value may be quoted.
fn pairs(line: &str) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    let mut rest = line.trim_start();
    while let Some((name, value)) = rest.split_once('=') {
        let (value, next) = if let Some(quoted) = value.strip_prefix('"') {
            quoted.split_once('"').unwrap_or((quoted, ""))
        } else {
            value.split_once(char::is_whitespace).unwrap_or((value, ""))
        };
        pairs.push((name.trim().to_owned(), value.to_owned()));
        rest = next.trim_start();
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(files: &[(&str, &str)]) -> SlurmConf {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        SlurmConf::read(&folder.path().join(files[0].0)).unwrap()
    }

    #[test]
    fn parameters_are_found_whatever_their_case() {
        let conf = read(&[(
            "slurm.conf",
            "# comment\nclustername=C1  # ours\nSLURMUSER=slurm SlurmctldPort=6817\nJobCompLoc=\"/a b\"\n",
        )]);
        assert_eq!(
            (conf.get("ClusterName"), conf.slurm_user()),
            (Some("C1"), "slurm")
        );
        assert_eq!(
            (conf.get("SlurmctldPort"), conf.get("JobCompLoc")),
            (Some("6817"), Some("/a b"))
        );
    }

    #[test]
    fn includes_and_continued_lines_are_followed() {
        let conf = read(&[
            ("slurm.conf", "Include more.conf\nProlog\\\nSlurmctld=/x\n"),
            ("more.conf", "ClusterName=inner\ninclude slurm.conf\n"),
        ]);
        assert_eq!(
            (conf.get("ClusterName"), conf.get("PrologSlurmctld")),
            (Some("inner"), Some("/x"))
        );
        assert_eq!(conf.slurm_user(), "root");
    }

    #[test]
    fn several_programs_are_all_preserved() {
        let conf = read(&[("slurm.conf", "Prolog=/a\nEpilog=/e\nProlog=/b\n")]);
        assert_eq!(
            (conf.get("Prolog"), conf.get("Epilog")),
            (Some("/a,/b"), Some("/e"))
        );
        let printed = [
            ("Prolog[0]", "/a"),
            ("Prolog[1]", "/b"),
            ("Epilog[0]", "/e"),
            ("SlurmctldHost[0]", "ctl1"),
        ];
        let printed = printed.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let conf = SlurmConf::from_controller(Path::new("/x"), &printed.into());
        assert_eq!(
            (conf.get("Prolog"), conf.get("Epilog")),
            (Some("/a,/b"), Some("/e"))
        );
        assert_eq!(conf.controllers(), ["ctl1"]);
    }

    #[test]
    fn every_controller_is_found() {
        let conf = read(&[(
            "slurm.conf",
            "SlurmctldHost=ctl1(10.0.0.1)\nSlurmctldHost=ctl2\n",
        )]);
        assert_eq!(conf.controllers(), ["ctl1", "ctl2"]);
    }

    #[test]
    fn nodes_and_partitions_are_no_parameters() {
        let conf = read(&[(
            "slurm.conf",
            "ClusterName=c\nPartitionName=p Prolog=/no State=UP\nNodeName=n1 Port=1\n",
        )]);
        assert_eq!((conf.get("Prolog"), conf.get("Port")), (None, None));
    }

    #[test]
    fn nodes_list_their_resources() {
        let conf = read(&[(
            "slurm.conf",
            "NodeName=DEFAULT Sockets=2 CoresPerSocket=4 RealMemory=8000\nNodeName=n[1-2]\nNodeName=g1 CPUs=64 RealMemory=512000 Gres=gpu:a100:4(S:0-1),nvme:1,gpu:2\n",
        )]);
        let line = |names: &str, cpus, memory_mib, gpus, gpu_types: &str| NodeLine {
            names: names.into(),
            cpus,
            memory_mib,
            gpus,
            gpu_types: gpu_types.into(),
        };
        assert_eq!(
            conf.nodes,
            [
                line("n[1-2]", 8, 8000, 0, ""),
                line("g1", 64, 512_000, 6, "gpu:a100:4,gpu:2")
            ]
        );
    }

    #[test]
    fn output_of_the_controller_reads_like_a_file() {
        let printed = BTreeMap::from([
            ("SlurmUser".into(), "slurm(64030)".into()),
            ("PrologSlurmctld".into(), "(null)".into()),
        ]);
        let conf = SlurmConf::from_controller(Path::new("/x"), &printed);
        assert_eq!(
            (conf.slurm_user(), conf.get("PrologSlurmctld")),
            ("slurm", None)
        );
    }
}
