//! The files of `examples/sandia`: an object becomes a picture, once, although the mesh is killed and the store says no.

mod store;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use integration::{
    Cluster, ClusterOptions, Mesh, Programs, Slurm as _, trigger_keys, wait_for, write_private,
};
use serde_json::Value;

use crate::support::{PATIENCE, options};
use store::{Store, alice};

const SECRET: &str = "a secret of the object store";
/// Neither plain nor ASCII.
const BROKEN: &str = "no rod/1+é.json";

struct Flow {
    mesh: Mesh,
    store: Store,
    cluster: Cluster,
    /// Alice's folder.
    scratch: PathBuf,
}

impl Flow {
    async fn start() -> Self {
        let cluster = Cluster::start(&ClusterOptions::small("sandia"))
            .await
            .unwrap();
        let (scratch, secret) = (cluster.path("scratch"), cluster.path("store.secret"));
        std::fs::create_dir(&scratch).unwrap();
        std::os::unix::fs::chown(&scratch, Some(id_of("alice")), None).unwrap();
        write_private(&secret, SECRET).unwrap();
        let programs = Programs::find().unwrap().smesh;
        let keys = trigger_keys(&cluster, programs.parent().unwrap(), &example("triggers.d"));
        let rules = std::fs::read_to_string(example("rules.toml")).unwrap();
        let rules = rules
            .replace("/scratch/alice", scratch.to_str().unwrap())
            .replace("/etc/slurm-mesh/store.secret", secret.to_str().unwrap());
        let overlay = format!("{}{rules}", keys.unwrap());
        let mut mesh = Mesh::set_up(&cluster, "mesh", &options(&overlay))
            .await
            .unwrap();
        // No bucket for pictures: storing one fails at first.
        let store = Store::start(&cluster, &mesh, SECRET, "experiments");
        store.hand_out(&cluster, &example(""), &scratch);
        mesh.start().await.unwrap();
        cluster.ring(&mesh.hook_config()).unwrap();
        Self {
            mesh,
            store,
            cluster,
            scratch,
        }
    }

    /// Stores an object as alice. Returns the id of its event.
    async fn put(&self, key: &str, file: &Path) -> String {
        let object = ("experiments", key);
        let put = alice(&self.cluster, &self.scratch, "put", object, file);
        put.await.unwrap();
        self.store.wait("experiments", key).await
    }

    async fn runs(&self, query: &str) -> Vec<Value> {
        let path = format!("/v1/trigger-runs?{query}");
        let answer = self.mesh.get_patiently(&path).await.unwrap();
        let runs = answer.json()["runs"].as_array().cloned();
        runs.unwrap_or_else(|| panic!("{path}: {} {}", answer.status, answer.body))
    }

    /// Waits until the runs of an event's chain are as far as that.
    async fn wait_runs(&self, description: &str, root: &str, done: impl Fn(&[Value]) -> bool) {
        let query = format!("root={root}");
        let waited = wait_for(description, PATIENCE, async || {
            Ok(done(&self.runs(&query).await).then_some(()))
        });
        if let Err(error) = waited.await {
            let runs = self.runs(&query).await;
            panic!("{error}: {runs:#?}");
        }
    }

    /// The rules that submitted a job in the chain of an event, sorted.
    async fn submitted(&self, root: &str) -> Vec<String> {
        let runs = self.runs(&format!("root={root}")).await;
        let rules = runs.iter().map(|run| run["rule"].as_str().unwrap());
        let mut rules: Vec<_> = rules
            .filter(|rule| !["alice/again", "alice/tell"].contains(rule))
            .map(str::to_owned)
            .collect();
        rules.sort_unstable();
        rules
    }

    /// Jobs of alice in Slurm's accounting by name: how each ended.
    async fn accounted(&self) -> BTreeMap<String, Vec<String>> {
        let command = [
            "sacct",
            "-n",
            "-P",
            "-X",
            "-u",
            "alice",
            "-S",
            "now-1hours",
            "-o",
            "JobName,State",
        ];
        let rows = self.cluster.ask("root", &command).await.unwrap();
        let mut jobs = BTreeMap::<_, Vec<_>>::new();
        for row in rows.lines() {
            let (name, state) = row.split_once('|').unwrap();
            jobs.entry(name.to_owned())
                .or_default()
                .push(state.to_owned());
        }
        jobs
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_becomes_a_picture_once_although_the_mesh_is_killed_and_the_store_says_no() {
    let mut flow = Flow::start().await;
    // In the folder that alice reads.
    let rod = flow.cluster.path("rod.json");
    std::fs::copy(example("rod.json"), &rod).unwrap();
    let object = flow.put("rod.json", &rod).await;
    flow.wait_runs("the simulation is submitted", &object, |runs| {
        runs.iter().any(|run| run["job_id"].is_u64())
    })
    .await;
    flow.mesh.kill().await.unwrap();
    flow.mesh.start().await.unwrap();

    // The store has no place for the picture: the plot fails and runs again.
    flow.wait_runs("the plot runs again", &object, |runs| {
        runs.iter().any(|run| run["rule"] == "alice/again")
    })
    .await;
    flow.store.add_bucket("pictures");
    let picture = flow.store.wait("pictures", "rod.svg").await;
    let copy = flow.scratch.join("copy.svg");
    alice(
        &flow.cluster,
        &flow.scratch,
        "get",
        ("pictures", "rod.svg"),
        &copy,
    )
    .await
    .unwrap();
    let drawn = std::fs::read_to_string(&copy).unwrap();
    check_picture(&drawn);
    assert_eq!(
        drawn,
        std::fs::read_to_string(example("rod.svg")).unwrap(),
        "the picture of README.md is another"
    );

    // What is no rod fails, is not repeated, and its owner is notified.
    let broken = flow.cluster.path("broken.json");
    std::fs::write(&broken, "{\"title\": \"no rod\"}").unwrap();
    let no_rod = flow.put(BROKEN, &broken).await;
    flow.wait_runs("alice is notified", &no_rod, |runs| {
        runs.iter()
            .any(|run| run["rule"] == "alice/tell" && run["state"] == "done")
    })
    .await;

    // Each step happened once, and the picture, which the store announced, too, started nothing.
    assert_eq!(
        flow.submitted(&object).await,
        ["alice/plot", "alice/simulate"]
    );
    assert_eq!(flow.submitted(&no_rod).await, ["alice/simulate"]);
    assert!(flow.runs(&format!("root={picture}")).await.is_empty());
    let accounted = wait_for("accounting has the ends", PATIENCE, async || {
        let jobs = flow.accounted().await;
        let ended = |state: &String| state == "COMPLETED" || state == "FAILED";
        let has_all = jobs.values().flatten().filter(|state| ended(state)).count() >= 3;
        Ok(has_all.then_some(jobs))
    });
    let accounted = accounted.await.unwrap();
    assert_eq!(accounted.len(), 2, "{accounted:?}");
    assert_eq!(accounted["sandia-plot"], ["COMPLETED"]);
    assert_eq!(accounted["sandia-simulate"], ["COMPLETED", "FAILED"]);
    for (bucket, key) in [
        ("experiments", "rod.json"),
        ("experiments", BROKEN),
        ("pictures", "rod.svg"),
    ] {
        let announced = flow.store.announced(bucket, key);
        assert_eq!(announced.len(), 1, "{bucket}/{key} was stored once");
        // Announced twice, which is one event.
        let ids = announced[0]["ids"].as_array().unwrap();
        assert_eq!((ids.len(), &ids[0]), (2, &ids[1]));
    }
    // The event of each job names the run that submitted it.
    let runs = flow.runs(&format!("root={object}")).await;
    for rule in ["alice/simulate", "alice/plot"] {
        let run = runs.iter().find(|run| run["rule"] == rule).unwrap();
        let path = format!("/v1/events?type=job.submitted&job={}", run["job_id"]);
        let answer = flow.mesh.get_patiently(&path).await.unwrap();
        let event = &answer.json()["entries"][0]["event"]["data"];
        let named = format!("trigger/{}", run["key"].as_str().unwrap());
        let entities = &event["correlation"]["entities"];
        assert_eq!(*entities, serde_json::json!([named]), "{}", answer.body);
    }
    flow.mesh.verify().await.unwrap();
}

/// A curve for each time of `rod.json`, of as many points as the simulation has, and each one is flatter than the one before.
fn check_picture(svg: &str) {
    let check = "import sys, xml.dom.minidom as m; print(m.parseString(sys.argv[1].encode()).documentElement.tagName)";
    let parsed = std::process::Command::new("/usr/bin/python3")
        .args(["-c", check, svg])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&parsed.stdout), "svg\n");
    let heights: Vec<f64> = svg
        .lines()
        .filter_map(|line| line.strip_prefix("<polyline points=\""))
        .map(|line| {
            let (points, _) = line.split_once('"').unwrap();
            let y = points
                .split(' ')
                .map(|point| point.split_once(',').unwrap().1.parse::<f64>().unwrap());
            let y: Vec<_> = y.collect();
            assert_eq!(y.len(), 201);
            y.into_iter().fold(f64::INFINITY, f64::min)
        })
        .collect();
    assert_eq!(heights.len(), 5);
    assert!(heights.is_sorted_by(|a, b| a < b), "{heights:?}");
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples/sandia")
        .join(name)
}

fn id_of(user: &str) -> u32 {
    let output = std::process::Command::new("id").args(["-u", user]).output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    text.trim().parse().unwrap()
}
