//! GPUs by job on a real cluster whose GPUs are terminals: mesh-hook as Prolog and Epilog, a stand-in for dcgm-exporter on each node, the
//! exporter's join series, and a real Prometheus with the rules of deploy/compose. No GPU is there.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use integration::{Cluster, ClusterOptions, Error, Mesh, Programs, Slurm as _, wait_for};
use mesh_testkit::{DcgmExporter, Prometheus, copy_program, script, write_private};
use tempfile::TempDir;

use crate::support::{PATIENCE, options};

const NODES: [&str; 2] = ["n2", "n3"];
const GPUS: [&str; 4] = ["0", "1", "2", "3"];

/// Job ids by node and GPU. GPUs without a job are left out.
type JobsOfGpus = BTreeMap<(String, String), String>;

/// Prolog and Epilog, with a hook.toml for each node, because all nodes are on this machine.
fn write_hooks(folder: &Path) -> String {
    let program = folder.join("mesh-hook");
    copy_program(&Programs::find().unwrap().hook, &program);
    let text = format!(
        "exec {} --config {}/$SLURMD_NODENAME.toml",
        program.display(),
        folder.display()
    );
    script(&folder.join("hook"), &text);
    let hook = folder.join("hook").display().to_string();
    format!("Prolog={hook}\nEpilog={hook}\nPrologFlags=Alloc\n")
}

/// The numbers of `0,2-3`.
fn numbers(list: &str) -> Vec<u32> {
    let ranges = list.split(',').map(|item| {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        first.parse::<u32>().unwrap()..=last.parse().unwrap()
    });
    ranges.flatten().collect()
}

/// The GPUs of running jobs as scontrol prints them.
async fn by_scontrol(cluster: &Cluster) -> Result<JobsOfGpus, Error> {
    let text = cluster
        .ask("root", &["scontrol", "-d", "show", "job"])
        .await?;
    let mut found = JobsOfGpus::new();
    let mut job = "";
    let mut is_running = false;
    for line in text.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("JobId=") {
            job = rest.split(' ').next().unwrap_or_default();
        }
        if line.starts_with("JobState=") {
            is_running = line.starts_with("JobState=RUNNING ");
        }
        let group = line.strip_prefix("Nodes=").filter(|_| is_running);
        let Some((nodes, indices)) = group.and_then(|group| {
            let (_, rest) = group.split_once("(IDX:")?;
            Some((group.split(' ').next()?, rest.split_once(')')?.0))
        }) else {
            continue;
        };
        let nodes = nodes.trim_start_matches('n').trim_matches(['[', ']']);
        for node in numbers(nodes) {
            for gpu in numbers(indices) {
                found.insert((format!("n{node}"), gpu.to_string()), job.to_owned());
            }
        }
    }
    Ok(found)
}

/// What the stand-ins show.
fn by_labels(exporters: &[DcgmExporter]) -> JobsOfGpus {
    let mut found = JobsOfGpus::new();
    for (node, exporter) in NODES.iter().zip(exporters) {
        for (gpu, jobs) in exporter.jobs() {
            assert!(jobs.len() <= 1, "{jobs:?}");
            if let [job] = jobs.as_slice() {
                found.insert(((*node).to_owned(), gpu), job.clone());
            }
        }
    }
    found
}

/// What the exporter says.
async fn by_exporter(mesh: &Mesh) -> Result<JobsOfGpus, Error> {
    let answer = mesh.get("/metrics/cluster").await?;
    let lines = answer.body.lines();
    let lines = lines.filter(|line| line.starts_with("mesh_job_gpu_info{"));
    let found = lines.map(|line| {
        let label = |name: &str| {
            let (_, rest) = line.split_once(&format!(",{name}=\"")).unwrap();
            rest.split('"').next().unwrap().to_owned()
        };
        ((label("node"), label("gpu")), label("job_id"))
    });
    Ok(found.collect())
}

/// Waits until Slurm, the labels and the exporter say the same, with so many GPUs.
async fn agree(site: &Site, gpus: usize) -> JobsOfGpus {
    let mut last = None;
    let waited = wait_for("all agree", PATIENCE, async || {
        let found = (
            by_scontrol(&site.cluster).await?,
            by_labels(&site.exporters),
            by_exporter(&site.mesh).await?,
        );
        let is_equal = found.0.len() == gpus && found.0 == found.1 && found.0 == found.2;
        let slurm = found.0.clone();
        last = Some(found);
        Ok(is_equal.then_some(slurm))
    });
    let waited = waited.await;
    waited.unwrap_or_else(|error| panic!("{error}: {last:#?}"))
}

struct Site {
    mesh: Arc<Mesh>,
    cluster: Cluster,
    exporters: Vec<DcgmExporter>,
    _folder: TempDir,
}

async fn start() -> Site {
    let folder = tempfile::Builder::new()
        .prefix("mesh-gpus-")
        .tempdir_in("/tmp")
        .unwrap();
    integration::set_mode(folder.path(), 0o755).unwrap();
    let conf = folder.path().join("extra.conf");
    fs::write(&conf, write_hooks(folder.path())).unwrap();
    let cluster = ClusterOptions {
        hooks: false,
        knobs: vec![
            ("NODES", "3".into()),
            ("GPU_NODES", "2".into()),
            ("CLOUD", "0".into()),
            ("EXTRA_CONF", conf.display().to_string()),
        ],
        ..ClusterOptions::small("gpus")
    };
    let cluster = Cluster::start(&cluster).await.unwrap();
    let more = "[exporter]\nenabled = true\nrefresh_interval = \"1s\"\n";
    let mut mesh = Mesh::set_up(&cluster, "mesh", &options(more))
        .await
        .unwrap();
    mesh.start().await.unwrap();
    let hook_config = fs::read_to_string(mesh.hook_config()).unwrap();
    let mut exporters = Vec::new();
    for node in NODES {
        let gpus = folder.path().join(format!("gpu-{node}"));
        let text = format!("gpu_map = \"dcgm:{}\"\n{hook_config}", gpus.display());
        write_private(&folder.path().join(format!("{node}.toml")), text);
        let host = format!("{node}.cluster.example.org");
        exporters.push(DcgmExporter::start(&host, &gpus, &GPUS).await);
    }
    Site {
        cluster,
        mesh: Arc::new(mesh),
        exporters,
        _folder: folder,
    }
}

/// A Prometheus that scrapes the stand-ins and the exporter.
async fn prometheus(site: &Site, folder: &Path) -> Prometheus {
    async fn page(State(mesh): State<Arc<Mesh>>) -> String {
        let answer = mesh.get("/metrics/cluster").await;
        answer.map_or_else(|_| String::new(), |answer| answer.body)
    }
    let router = Router::new()
        .route("/metrics", get(page))
        .with_state(Arc::clone(&site.mesh));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let cluster = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let rules = include_str!("../../../../deploy/compose/observability/kpis.yml");
    fs::write(
        folder.join("kpis.yml"),
        rules.replace("interval: 1m", "interval: 1s"),
    )
    .unwrap();
    let dcgm: Vec<String> = site.exporters.iter().map(DcgmExporter::address).collect();
    let config = format!(
        "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [kpis.yml]\nscrape_configs:\n  - job_name: slurm-mesh-cluster\n    static_configs: [{{ targets: [\"{cluster}\"] }}]\n  - job_name: dcgm\n    static_configs: [{{ targets: {dcgm:?} }}]\n"
    );
    fs::write(folder.join("prometheus.yml"), config).unwrap();
    Prometheus::start(folder)
}

async fn wait_value(prometheus: &Prometheus, expr: &str, expected: f64) {
    let mut last = None;
    let waited = wait_for(expr, PATIENCE, async || {
        let found = prometheus.query(expr).await.map_err(Error::Machine)?;
        let value = found
            .first()
            .and_then(|one| one["value"][1].as_str()?.parse::<f64>().ok());
        let is_there = value.is_some_and(|value| (value - expected).abs() < 1e-9);
        last = Some(found);
        Ok(is_there.then_some(()))
    });
    let waited = waited.await;
    waited.unwrap_or_else(|error| panic!("{error}: {last:?}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_join_series_and_occupancy_are_those_of_the_jobs() {
    mesh_runtime::install_crypto_provider();
    let site = start().await;
    let submit = async |options: &[&str]| {
        let options = [&["--partition=gpu"][..], options].concat();
        site.cluster
            .submit("alice", &options, "sleep 1000")
            .await
            .unwrap()
    };
    let two = submit(&["--nodelist=n2", "--gres=gpu:2"]).await;
    let both = submit(&["--nodes=2", "--gres=gpu:1"]).await;
    let held = agree(&site, 4).await;
    let jobs: Vec<&String> = held.values().collect();
    let count = |job: u32| jobs.iter().filter(|id| ***id == job.to_string()).count();
    assert_eq!((count(two), count(both)), (2, 2), "{held:?}");

    let folder = tempfile::tempdir().unwrap();
    let prometheus = prometheus(&site, folder.path()).await;
    let mut percents = [80.0, 40.0].into_iter();
    for ((node, gpu), job) in &held {
        let place = NODES.iter().position(|name| name == node).unwrap();
        let percent = match *job == two.to_string() {
            true => percents.next().unwrap(),
            false => 10.0,
        };
        site.exporters[place].set_use(gpu, percent);
    }
    for (job, expected) in [(two, 0.6), (both, 0.1)] {
        let joined = format!(
            "mesh:job_gpu_occupancy:ratio{{cluster=\"gpus\",partition=\"gpu\",job_id=\"{job}\"}}"
        );
        wait_value(&prometheus, &joined, expected).await;
        let mapped = format!("mesh:hpc_job_gpu_occupancy:ratio{{hpc_job=\"{job}\"}}");
        wait_value(&prometheus, &mapped, expected).await;
    }
    let all = "mesh:gpu_occupancy:ratio{cluster=\"gpus\",partition=\"gpu\"}";
    wait_value(&prometheus, all, 0.35).await;

    // A job that is killed, and the next one on the same GPUs.
    let id = two.to_string();
    site.cluster
        .ask("root", &["scancel", "--signal=KILL", "--full", &id])
        .await
        .unwrap();
    agree(&site, 2).await;
    submit(&["--nodelist=n2", "--gres=gpu:3"]).await;
    agree(&site, 5).await;
    site.cluster
        .ask("root", &["scancel", "--user=alice"])
        .await
        .unwrap();
    agree(&site, 0).await;
    let drained = site
        .cluster
        .ask("root", &["sinfo", "-h", "-N", "-t", "drain"])
        .await
        .unwrap();
    assert_eq!(drained, "");
}
