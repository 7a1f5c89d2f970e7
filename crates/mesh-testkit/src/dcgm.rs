//! A stand-in for dcgm-exporter on a node. No GPU is needed, and nothing of DCGM.
//!
//! At each scrape it reads the job mapping folder with the rules of dcgm-exporter's `internal/pkg/transformation/hpc.go`, of its releases the
//! strictest: it lists the folder, then opens what it found, and fails the scrape if a file has gone meanwhile or has a job twice. A GPU
//! with an empty file is left out. A line is a copy of each metric with `hpc_job`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::Port;

/// Time between the listing and the opening of files, in which a file may vanish.
const GAP: Duration = Duration::from_millis(1);

struct Shared {
    hostname: String,
    folder: PathBuf,
    /// Percent of time in use, by GPU.
    use_percent: Mutex<BTreeMap<String, f64>>,
}

/// A dcgm-exporter for the GPUs of a node.
pub struct DcgmExporter {
    shared: Arc<Shared>,
    port: Port,
    server: JoinHandle<()>,
}

impl DcgmExporter {
    /// Starts it for idle GPUs, each named by its index, or by `index.instance` for a MIG device.
    ///
    /// # Panics
    /// If no port can be bound.
    pub async fn start(hostname: &str, folder: &Path, gpus: &[&str]) -> Self {
        let shared = Arc::new(Shared {
            hostname: hostname.to_owned(),
            folder: folder.to_owned(),
            use_percent: Mutex::new(gpus.iter().map(|gpu| ((*gpu).to_owned(), 0.0)).collect()),
        });
        let port = Port::take();
        let listener = TcpListener::bind(port.address())
            .await
            .expect("bind the port");
        let app = Router::new()
            .route("/metrics", get(scrape))
            .with_state(Arc::clone(&shared));
        let server = tokio::spawn(async move { axum::serve(listener, app).await.expect("serve") });
        Self {
            shared,
            port,
            server,
        }
    }

    /// Host and port.
    pub fn address(&self) -> String {
        self.port.address().to_string()
    }

    /// Sets how much of the time a GPU is in use, in percent.
    ///
    /// # Panics
    /// If a scrape panicked.
    pub fn set_use(&self, gpu: &str, percent: f64) {
        let mut all = self
            .shared
            .use_percent
            .lock()
            .expect("no panic while locked");
        all.insert(gpu.to_owned(), percent);
    }

    /// The answer to a scrape: status and text.
    pub fn scrape(&self) -> (StatusCode, String) {
        answer(&self.shared)
    }

    /// The jobs of each GPU that the next scrape shows.
    ///
    /// # Panics
    /// If the scrape fails.
    pub fn jobs(&self) -> BTreeMap<String, Vec<String>> {
        let (status, text) = self.scrape();
        assert!(status.is_success(), "{text}");
        let mut jobs: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for line in text
            .lines()
            .filter(|line| line.starts_with("DCGM_FI_PROF_GR_ENGINE_ACTIVE{"))
        {
            let label = |name: &str| {
                let (_, rest) = line.split_once(&format!("{name}=\""))?;
                rest.split('"').next().filter(|value| !value.is_empty())
            };
            let index = label("{gpu").expect("a GPU").to_owned();
            let gpu = label("GPU_I_ID").map_or(index.clone(), |id| format!("{index}.{id}"));
            let of = jobs.entry(gpu).or_default();
            of.extend(label("hpc_job").map(str::to_owned));
        }
        jobs
    }
}

impl Drop for DcgmExporter {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn scrape(State(shared): State<Arc<Shared>>) -> (StatusCode, String) {
    let answered = tokio::task::spawn_blocking(move || answer(&shared)).await;
    answered.unwrap_or_else(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}

fn answer(shared: &Shared) -> (StatusCode, String) {
    match mapped(&shared.folder) {
        Ok(jobs) => (StatusCode::OK, write(shared, &jobs)),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// Lines of each file whose name is a GPU.
fn mapped(folder: &Path) -> io::Result<BTreeMap<String, Vec<String>>> {
    // A missing folder is logged and means no jobs.
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Ok(BTreeMap::new());
    };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let names = entries.filter_map(|entry| {
        let entry = entry.ok()?;
        let name = entry.file_name().into_string().ok()?;
        let is_file = entry.metadata().is_ok_and(|found| !found.is_dir());
        (is_file && name.splitn(2, '.').all(is_number)).then_some(name)
    });
    let names: Vec<String> = names.collect();
    std::thread::sleep(GAP);
    let read = names.into_iter().map(|name| {
        let text = std::fs::read_to_string(folder.join(&name))?;
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        if lines.iter().collect::<BTreeSet<_>>().len() < lines.len() {
            return Err(io::Error::other(format!("{name}: a job twice")));
        }
        Ok((name, lines))
    });
    read.collect()
}

fn write(shared: &Shared, jobs: &BTreeMap<String, Vec<String>>) -> String {
    let all = shared.use_percent.lock().expect("no panic while locked");
    let mut text = String::new();
    for (metric, help, scale, of_instances) in [
        (
            "DCGM_FI_DEV_GPU_UTIL",
            "GPU utilization (in %).",
            1.0,
            false,
        ),
        (
            "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
            "Ratio of time the graphics engine is active.",
            0.01,
            true,
        ),
    ] {
        writeln!(text, "# HELP {metric} {help}\n# TYPE {metric} gauge").expect("memory");
        for (gpu, percent) in all.iter() {
            let (index, instance) = match gpu.split_once('.') {
                Some((index, instance)) if of_instances => (index, Some(instance)),
                Some(_) => continue,
                None => (gpu.as_str(), None),
            };
            let mut labels = format!(
                "gpu=\"{index}\",UUID=\"GPU-{index}\",device=\"nvidia{index}\",modelName=\"Stand-in\""
            );
            if let Some(instance) = instance {
                write!(labels, ",GPU_I_PROFILE=\"1g.5gb\",GPU_I_ID=\"{instance}\"")
                    .expect("memory");
            }
            write!(labels, ",Hostname=\"{}\"", shared.hostname).expect("memory");
            let value = percent * scale;
            match jobs.get(gpu) {
                None => writeln!(text, "{metric}{{{labels}}} {value}").expect("memory"),
                Some(jobs) => {
                    for job in jobs {
                        writeln!(text, "{metric}{{{labels},hpc_job=\"{job}\"}} {value}")
                            .expect("memory");
                    }
                }
            }
        }
    }
    text
}
