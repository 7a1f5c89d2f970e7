//! An object store (`tests/integration/store`) that announces to a mesh what it stored.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use integration::{Cluster, Error, Mesh, Slurm as _, wait_for, write_private};
use serde_json::Value;

use crate::support::PATIENCE;

/// Installed by scripts/setup, relative to the root of the project.
const MODULES: &str = ".tools/store/node_modules";
/// Access key and secret key.
const KEY: &str = "S3RVER";

pub struct Store {
    child: Child,
    port: String,
    /// Where the buckets are folders.
    buckets: PathBuf,
    announced: Arc<Mutex<Vec<Value>>>,
}

impl Store {
    /// Starts a store with one bucket.
    pub fn start(cluster: &Cluster, mesh: &Mesh, secret: &str, bucket: &str) -> Self {
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        let modules = package.join("../..").join(MODULES);
        assert!(
            modules.is_dir(),
            "there is no {}: run scripts/setup, which installs the object store of the tests",
            modules.display()
        );
        let buckets = cluster.path("store");
        // It ends with this thread, also if the test is killed.
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--", "node"])
            .arg(package.join("store/store.mjs"))
            .arg(&buckets)
            .arg(mesh.socket())
            .args([secret, bucket])
            .env("STORE_MODULES", modules)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("setpriv and node: run scripts/setup");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let port = lines.next().expect("the store started").unwrap();
        let announced = Arc::<Mutex<Vec<Value>>>::default();
        let list = Arc::clone(&announced);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let object = serde_json::from_str(&line).unwrap();
                list.lock().unwrap().push(object);
            }
        });
        Self {
            child,
            port,
            buckets,
            announced,
        }
    }

    /// Copies the example's program for objects into alice's folder, with her keys.
    pub fn hand_out(&self, cluster: &Cluster, example: &Path, scratch: &Path) {
        let config = std::fs::read_to_string(example.join("store.json")).unwrap();
        let config = config
            .replace(
                "https://store.example.org",
                &format!("http://127.0.0.1:{}", self.port),
            )
            .replace("ACCESS_KEY", KEY)
            .replace("SECRET_KEY", KEY);
        let keys = cluster.path("store.json");
        write_private(&keys, &config).unwrap();
        install_for_alice(&["-m", "600"], &keys, scratch);
        install_for_alice(&["-m", "755"], &example.join("store.py"), scratch);
    }

    pub fn add_bucket(&self, name: &str) {
        std::fs::create_dir(self.buckets.join(name)).unwrap();
    }

    /// What was stored and announced as that key.
    pub fn announced(&self, bucket: &str, key: &str) -> Vec<Value> {
        let all = self.announced.lock().unwrap();
        let is_it = |object: &&Value| object["bucket"] == bucket && object["key"] == key;
        all.iter().filter(is_it).cloned().collect()
    }

    /// Waits until an object is stored and announced. Returns the id of its event.
    pub async fn wait(&self, bucket: &str, key: &str) -> String {
        let description = format!("{bucket}/{key} is stored and announced");
        let object = wait_for(&description, PATIENCE, async || {
            Ok(self.announced(bucket, key).pop())
        });
        let object = object.await.unwrap();
        object["ids"][0].as_str().unwrap().to_owned()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Puts or gets an object as alice, with the example's program.
pub async fn alice(
    cluster: &Cluster,
    scratch: &Path,
    verb: &str,
    (bucket, key): (&str, &str),
    file: &Path,
) -> Result<String, Error> {
    let program = scratch.join("store.py");
    let [program, file] = [program.as_path(), file].map(|path| path.to_str().unwrap());
    let command = ["/usr/bin/python3", program, verb, bucket, key, file];
    cluster.ask("alice", &command).await
}

/// Runs `install` so that alice owns the result.
fn install_for_alice(options: &[&str], from: &Path, to: &Path) {
    let mut install = Command::new("install");
    install.args(["-o", "alice"]).args(options).args([from, to]);
    assert!(install.status().unwrap().success());
}
