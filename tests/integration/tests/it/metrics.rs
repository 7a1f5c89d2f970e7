//! The exporter's numbers against Slurm's own, on a quiet cluster: squeue and sinfo everywhere, and slurmctld's OpenMetrics page where Slurm
//! has one (25.11 and newer).

use std::collections::BTreeMap;
use std::path::Path;

use integration::{Cluster, ClusterOptions, Error, Mesh, Slurm as _, wait_for};

use crate::support::{PATIENCE, options};

const EXPORTER: &str = "[exporter]\nenabled = true\nrefresh_interval = \"1s\"\nfamilies = [\"cluster\", \"native\", \"vpenso\", \"sckyzo\", \"rivosinc\", \"slinky\", \"soperator\"]\n[ingest.statistics]\ninterval = \"1s\"\nshares_interval = \"1s\"\n";
const PAGES: [&str; 5] = [
    "jobs",
    "nodes",
    "partitions",
    "jobs-users-accts",
    "scheduler",
];

/// Metrics of slurmctld that the exporter does not serve, or that have another value for a reason.
const DIFFERENT: &[(&str, &str)] = &[
    ("slurm_node_memory_free_bytes", "changes all the time"),
    ("slurm_partition_nodes_mem_free", "changes all the time"),
    ("slurm_sdiag_latency", "measured at each question"),
    ("slurm_sched_stats_timestamp", "time of the question"),
    ("slurm_server_thread_cnt", "a question is a thread itself"),
    ("slurm_agent_cnt", "changes all the time"),
    ("slurm_agent_thread_cnt", "changes all the time"),
    ("slurm_bf_active", "sdiag does not print it"),
    ("slurm_bf_cycle_tot", "sdiag does not print it"),
    ("slurm_bf_depth_tot", "sdiag does not print it"),
    ("slurm_bf_depth_try_tot", "sdiag does not print it"),
    ("slurm_bf_queue_len_tot", "sdiag does not print it"),
    ("slurm_bf_table_size_tot", "sdiag does not print it"),
    ("slurm_schedule_cycle_depth", "sdiag does not print it"),
    ("slurm_schedule_cycle_tot", "sdiag does not print it"),
];

/// Name and labels with the value.
pub type Samples = BTreeMap<String, f64>;

fn samples(text: &str) -> Samples {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let samples = lines.filter_map(|line| {
        let (name, value) = line.rsplit_once(' ')?;
        Some((name.to_owned(), value.parse().ok()?))
    });
    samples.collect()
}

fn is_different(name: &str) -> bool {
    let name = name.split('{').next().unwrap_or_default();
    DIFFERENT.iter().any(|(different, _)| *different == name)
}

/// Whether the Slurm of the tests has the plugin.
fn has_native_metrics() -> bool {
    let root = std::env::var("ROOT").unwrap_or_default();
    let plugin = "slurm-wlm/metrics_openmetrics.so";
    let libraries = Path::new(&root).join("usr/lib");
    let libraries = std::fs::read_dir(if root.is_empty() {
        Path::new("/usr/lib")
    } else {
        &libraries
    });
    let mut folders = libraries.into_iter().flatten().flatten();
    folders.any(|folder| folder.path().join(plugin).exists())
}

pub struct Site {
    pub cluster: Cluster,
    pub mesh: Mesh,
    _conf: tempfile::NamedTempFile,
}

/// A cluster with jobs in several states that stay as they are, and its mesh.
pub async fn site(name: &str) -> Result<Site, Error> {
    let conf = tempfile::NamedTempFile::new().unwrap();
    let mut settings = ClusterOptions::small(name);
    settings.hooks = false;
    let mut lines = "Licenses=matlab:10\n".to_owned();
    if has_native_metrics() {
        lines.push_str("MetricsType=metrics/openmetrics\n");
    }
    std::fs::write(conf.path(), lines).unwrap();
    let path = conf.path().display().to_string();
    settings.knobs.push(("EXTRA_CONF", path));
    let cluster = Cluster::start(&settings).await?;
    let mut mesh = Mesh::set_up(&cluster, "mesh", &options(EXPORTER)).await?;
    mesh.start().await?;
    let running = cluster
        .submit("alice", &["--licenses=matlab:3"], "sleep 1000")
        .await?;
    let failed = cluster.submit("bob", &[], "exit 3").await?;
    cluster.submit("bob", &["--hold"], "true").await?;
    cluster
        .submit("alice", &["--hold", "--array=1-5"], "true")
        .await?;
    let depends = format!("--dependency=afterok:{running}");
    cluster.submit("bob", &[&depends], "true").await?;
    cluster
        .wait_state(&running.to_string(), &["RUNNING"], PATIENCE)
        .await?;
    cluster
        .wait_state(&failed.to_string(), &["FAILED"], PATIENCE)
        .await?;
    let idle = cluster
        .ask("root", &["sinfo", "-h", "-N", "-t", "idle", "-o", "%N"])
        .await?;
    let idle = idle.lines().next().unwrap_or_default().trim().to_owned();
    let drain = format!("NodeName={idle}");
    cluster
        .ask(
            "root",
            &["scontrol", "update", &drain, "State=DRAIN", "Reason=test"],
        )
        .await?;
    Ok(Site {
        cluster,
        mesh,
        _conf: conf,
    })
}

pub async fn page(mesh: &Mesh, name: &str) -> Result<Samples, Error> {
    let answer = mesh.get(&format!("/metrics/{name}")).await?;
    Ok(samples(&answer.body))
}

/// Waits until both sides have the same, and shows the difference if they never do.
pub async fn agree(what: &str, mut sides: impl AsyncFnMut() -> Result<(Samples, Samples), Error>) {
    let mut last = (Samples::new(), Samples::new());
    let equal = wait_for(what, PATIENCE, async || {
        last = sides().await?;
        let is_equal = !last.0.is_empty() && last.0 == last.1;
        Ok(is_equal.then_some(()))
    })
    .await;
    if let Err(error) = equal {
        let (slurm, mesh) = last;
        let names: std::collections::BTreeSet<&String> = slurm.keys().chain(mesh.keys()).collect();
        let different: Vec<String> = names
            .into_iter()
            .filter(|name| slurm.get(*name) != mesh.get(*name))
            .map(|name| {
                format!(
                    "{name}: slurm {:?}, mesh {:?}",
                    slurm.get(name),
                    mesh.get(name)
                )
            })
            .collect();
        panic!("{error}\n{}", different.join("\n"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_of_jobs_and_nodes_are_those_of_squeue_and_sinfo() {
    let site = site("metrics").await.unwrap();
    let (cluster, mesh) = (&site.cluster, &site.mesh);
    agree("jobs by state", async || {
        let states = cluster
            .ask(
                "root",
                &["squeue", "-h", "-a", "-r", "-t", "all", "-o", "%T"],
            )
            .await?;
        let mut slurm = Samples::new();
        for state in states.lines() {
            let name = format!("slurm_queue_{}", state.trim().to_lowercase());
            *slurm.entry(name).or_default() += 1.0;
        }
        let mut ours = page(mesh, "vpenso").await?;
        ours.retain(|name, value| {
            name.starts_with("slurm_queue_")
                && name != "slurm_queue_pending_dependency"
                && *value > 0.0
        });
        Ok((slurm, ours))
    })
    .await;
    agree("CPUs by use", async || {
        let cpus = cluster.ask("root", &["sinfo", "-h", "-o", "%C"]).await?;
        let names = ["alloc", "idle", "other", "total"].map(|name| format!("slurm_cpus_{name}"));
        let numbers = cpus
            .trim()
            .split('/')
            .filter_map(|number| number.parse().ok());
        let slurm = names.into_iter().zip(numbers).collect();
        let mut ours = page(mesh, "vpenso").await?;
        ours.retain(|name, _| name.starts_with("slurm_cpus_"));
        Ok((slurm, ours))
    })
    .await;
    agree("running jobs and their CPUs by account", async || {
        let rows = cluster
            .ask(
                "root",
                &["squeue", "-h", "-a", "-r", "-t", "RUNNING", "-o", "%a %C"],
            )
            .await?;
        let mut slurm = Samples::new();
        for row in rows.lines() {
            let (account, cpus) = row.split_once(' ').unwrap();
            let label = format!("{{account=\"{account}\"}}");
            *slurm
                .entry(format!("slurm_account_jobs_running{label}"))
                .or_default() += 1.0;
            let cpus: f64 = cpus.trim().parse().unwrap();
            *slurm
                .entry(format!("slurm_account_cpus_running{label}"))
                .or_default() += cpus;
        }
        let mut ours = page(mesh, "vpenso").await?;
        ours.retain(|name, _| {
            name.starts_with("slurm_account_jobs_running") || name.starts_with("slurm_account_cpus")
        });
        Ok((slurm, ours))
    })
    .await;
    agree("nodes by word", async || {
        let rows = cluster
            .ask("root", &["sinfo", "-h", "-N", "-o", "%N %T"])
            .await?;
        let nodes: BTreeMap<&str, &str> = rows
            .lines()
            .filter_map(|row| row.trim().split_once(' '))
            .collect();
        let mut slurm = Samples::new();
        for (node, state) in nodes {
            let label = format!("{{node=\"{node}\",status=\"{state}\"}}");
            slurm.insert(format!("slurm_node_cpu_total{label}"), 0.0);
        }
        let mut ours = page(mesh, "vpenso").await?;
        ours.retain(|name, _| name.starts_with("slurm_node_cpu_total"));
        ours.values_mut().for_each(|value| *value = 0.0);
        Ok((slurm, ours))
    })
    .await;
    if !has_native_metrics() {
        return;
    }
    mesh_runtime::install_crypto_provider();
    let client = reqwest::Client::new();
    let address = cluster.fact("address").unwrap();
    let port = cluster.fact("port_slurmctld").unwrap();
    for name in PAGES {
        agree(&format!("slurmctld's page {name}"), async || {
            let url = format!("http://{address}:{port}/metrics/{name}");
            let answer = client.get(&url).send().await;
            let answer = answer.map_err(|error| Error::Machine(format!("{url}: {error}")))?;
            let text = answer.text().await.unwrap_or_default();
            let mut slurm = samples(&text);
            slurm.retain(|name, _| !is_different(name));
            let mut ours = page(mesh, name).await?;
            ours.retain(|name, _| !is_different(name));
            Ok((slurm, ours))
        })
        .await;
    }
}

/// The sum of a metric's samples with this label.
fn total(samples: &Samples, name: &str, label: &str) -> f64 {
    let of_metric = |key: &str| key.split('{').next() == Some(name) && key.contains(label);
    let found = samples.iter().filter(|(key, _)| of_metric(key));
    found.map(|(_, value)| value).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn key_figures_of_the_ledger_agree_with_the_counters_and_with_sacct() {
    let settings = ClusterOptions {
        hooks: false,
        ..ClusterOptions::small("figures")
    };
    let cluster = Cluster::start(&settings).await.unwrap();
    let mut mesh = Mesh::set_up(&cluster, "mesh", &options(EXPORTER))
        .await
        .unwrap();
    mesh.start().await.unwrap();
    let busy = "timeout 3 sh -c 'while :; do :; done'; true";
    for (script, count) in [(busy, 5), ("exit 3", 3)] {
        crate::support::submit_all(&cluster, "alice", count, script)
            .await
            .unwrap();
    }
    // What accounting has: each run with its state, its CPU time in seconds, and its CPUs times its time.
    let format = "--format=State,CPUTimeRAW";
    let sacct = async || {
        let command = ["sacct", "-a", "-D", "-X", "-P", "-n", format];
        let rows = cluster.ask("root", &command).await?;
        let rows: Vec<(String, f64)> = rows
            .lines()
            .filter_map(|row| row.split_once('|'))
            .map(|(state, cpu)| (state.to_owned(), cpu.parse().unwrap_or_default()))
            .collect();
        Ok::<_, Error>(rows)
    };
    let counters = wait_for("all runs and their use are counted", PATIENCE, async || {
        let rows = sacct().await?;
        let ended = |row: &&(String, f64)| matches!(row.0.as_str(), "COMPLETED" | "FAILED");
        let allocated: f64 = rows.iter().filter(ended).map(|row| row.1).sum();
        let samples = page(&mesh, "cluster").await?;
        let is_complete = rows.iter().filter(ended).count() == 8
            && (total(&samples, "mesh_job_cpu_seconds_total", "kind=\"allocated\"") - allocated)
                .abs()
                < 0.5
            && (total(&samples, "mesh_job_ends_total", "") - 8.0).abs() < 0.5;
        Ok(is_complete.then_some(samples))
    })
    .await
    .unwrap();
    let ratio = |name: &str| {
        let [used, allocated] =
            ["used", "allocated"].map(|kind| total(&counters, name, &format!("kind=\"{kind}\"")));
        used / allocated
    };
    let expected = [
        ("runs", 8.0),
        ("failure_rate", 3.0 / 8.0),
        ("cpu_efficiency", ratio("mesh_job_cpu_seconds_total")),
        (
            "memory_waste",
            1.0 - ratio("mesh_job_memory_byte_seconds_total"),
        ),
    ];
    // The ledger reads the bus on its own, later or sooner than the exporter.
    let mut answer = serde_json::Value::Null;
    let complete = wait_for("the ledger has the same figures", PATIENCE, async || {
        let output = mesh.smesh(&["--json", "stats", "--kpi"]).await?;
        answer = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let is_same = |(name, value): (&str, f64)| {
            let figure = answer["rows"][0][name].as_f64();
            figure.is_some_and(|figure| (figure - value).abs() < 1e-9)
        };
        Ok(expected.into_iter().all(is_same).then_some(()))
    });
    complete
        .await
        .unwrap_or_else(|error| panic!("{error}: {answer}"));
    let p95 = answer["rows"][0]["wait_p95_seconds"].as_f64().unwrap();
    // The histogram knows the bucket, not the value.
    let in_bucket = |bound: f64| {
        let label = format!("le=\"{bound}\"");
        total(&counters, "mesh_job_wait_seconds_bucket", &label) / 8.0
    };
    let bounds = [1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0];
    let bucket = bounds
        .into_iter()
        .find(|bound| in_bucket(*bound) >= 0.95)
        .unwrap();
    let below = bounds.into_iter().rev().find(|bound| *bound < bucket);
    assert!(
        p95 <= bucket && below.is_none_or(|below| p95 > below),
        "{p95} {bucket}"
    );
}
