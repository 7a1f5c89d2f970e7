//! The worked examples of `examples/triggers` on the demo's cluster: what happens starts jobs, each event once.

use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::{DateTime, DurationRound as _, TimeDelta, Utc};
use integration::{
    Cluster, Error, Mesh, Receiver, Slurm, set_mode, trigger_keys, wait_for, write_private,
};
use mesh_events::EventType;
use serde_json::{Value, json};

use crate::feed::Feed;

/// Name of the endpoint of the `CI`.
const CI: &str = "ci";
/// Runs that start with the object: `align`, `report` and `tell-ci`.
const RUNS_OF_OBJECT: usize = 3;
const SECRET: &str = "a secret of the object store";
/// The schedule in the examples. The demo does not wait until two o'clock.
const EVERY_NIGHT: &str = r#"cron = "0 2 * * *", zone = "Europe/Berlin""#;
/// Longer than the service takes to notice the changed schedule.
const NOTICE: TimeDelta = TimeDelta::seconds(15);
/// How long each step may take.
const PATIENCE: Duration = Duration::from_secs(90);

/// The rules with the paths of this demo.
pub struct Rules {
    /// Where the jobs write.
    scratch: PathBuf,
    text: String,
    keys: String,
}

/// An example, as it was played.
pub struct Example {
    title: &'static str,
    result: Played,
}

/// How it went.
enum Played {
    /// Each event started its job once. The lines prove it.
    Once(Vec<String>),
    /// This machine cannot play it.
    Impossible(String),
    /// Something went wrong.
    Wrong(String),
}

impl Example {
    /// True if it was played, and each event started its job once.
    pub const fn ran_once(&self) -> bool {
        matches!(self.result, Played::Once(_))
    }
}

impl Rules {
    /// Reads the examples and prepares what they name.
    pub fn set_up(cluster: &Cluster, programs: &Path) -> Result<Self, Error> {
        let examples = Path::new(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../examples/triggers"
        ));
        let (scratch, secret) = (cluster.path("scratch"), cluster.path("minio.secret"));
        std::fs::create_dir(&scratch).map_err(Error::io("make", &scratch))?;
        set_mode(&scratch, 0o1777)?;
        write_private(&secret, SECRET)?;
        let keys = trigger_keys(cluster, programs, &examples.join("triggers.d"))?;
        let rules = examples.join("rules.toml");
        let text = std::fs::read_to_string(&rules).map_err(Error::io("read", &rules))?;
        let text = text
            .replace("/scratch/alice", &scratch.to_string_lossy())
            .replace("/etc/slurm-mesh/minio.secret", &secret.to_string_lossy());
        Ok(Self {
            scratch,
            text,
            keys,
        })
    }

    /// Their part of `mesh.toml`.
    pub fn overlay(&self, receiver: &Receiver) -> String {
        let endpoint = receiver.endpoint(CI, "types = [\"user.notified\"]");
        format!("{}{}{endpoint}", self.keys, self.text)
    }

    /// Changes the nightly schedule to the next full minute. Rules take effect without a restart. Returns the instant.
    pub fn soon(&self, mesh: &Mesh) -> Result<DateTime<Utc>, Error> {
        if !self.text.contains(EVERY_NIGHT) {
            return Err(wrong(format!(
                "examples/triggers/rules.toml has no {EVERY_NIGHT}"
            )));
        }
        let minute = TimeDelta::minutes(1);
        let start = (Utc::now() + NOTICE).duration_trunc(minute);
        let at = start.map_err(|error| Error::Machine(format!("the next minute: {error}")))?;
        let at = at + minute;
        let cron = at.format(r#"cron = "%-M %-H * * *", zone = "UTC""#);
        mesh.change(&self.text.replace(EVERY_NIGHT, &cron.to_string()))?;
        Ok(at)
    }

    /// Plays all examples at the same time.
    pub async fn play(
        &self,
        cluster: &Cluster,
        mesh: &Mesh,
        receiver: &Receiver,
        nightly_at: DateTime<Utc>,
    ) -> Vec<Example> {
        let stage = Stage {
            rules: self,
            cluster,
            mesh,
            receiver,
        };
        let (object, memory, nightly) = tokio::join!(
            stage.object(),
            stage.out_of_memory(),
            stage.nightly(nightly_at)
        );
        // What came too often while the other examples were played is seen now.
        let object = match object {
            Ok((path, proof)) => stage.still_once(&path).await.map(|()| proof),
            Err(error) => Err(error),
        };
        let example = |title, played: Result<_, Error>| Example {
            title,
            result: played.unwrap_or_else(|error| Played::Wrong(error.chain())),
        };
        vec![
            example(
                "an object arrives → job → its end starts a second job and a signed webhook to the CI",
                object.map(Played::Once),
            ),
            example(
                "a job runs out of memory → again with half as much more",
                memory,
            ),
            example(
                "every night, here the next minute",
                nightly.map(Played::Once),
            ),
        ]
    }
}

/// Prints the examples and returns what went wrong.
pub fn print(feed: Feed, examples: &[Example]) -> Vec<String> {
    feed.heading("examples/triggers: each event starts its job once");
    let mut problems = Vec::new();
    for Example { title, result } in examples {
        anstream::println!("  {title}");
        match result {
            Played::Once(lines) => {
                for line in lines {
                    anstream::println!("    {line}");
                }
            }
            Played::Impossible(why) => anstream::println!("    not possible here: {why}"),
            Played::Wrong(problem) => problems.push(format!("example ({title}): {problem}")),
        }
    }
    problems
}

struct Stage<'a> {
    rules: &'a Rules,
    cluster: &'a Cluster,
    mesh: &'a Mesh,
    receiver: &'a Receiver,
}

impl Stage<'_> {
    /// The path of its runs, and what proves it.
    async fn object(&self) -> Result<(String, Vec<String>), Error> {
        let record = json!({
            "eventName": "s3:ObjectCreated:Put",
            "s3": {"bucket": {"name": "reads"}, "object": {"key": "s17.fastq.gz", "size": 5, "sequencer": "1"}}
        });
        let body = json!({ "Records": [record] }).to_string();
        let bearer = format!("Bearer {SECRET}");
        let mut object = String::new();
        // Twice, as an object store does that got no answer in time.
        for _ in 0..2 {
            let headers = [("authorization", bearer.as_str())];
            let answer = self
                .mesh
                .post("/v1/in/minio", &headers, body.clone())
                .await?;
            let ids = answer.json();
            let id = ids["ids"][0].as_str().filter(|_| answer.status == 202);
            let refused = || wrong(format!("/v1/in/minio: {} {}", answer.status, answer.body));
            id.ok_or_else(refused)?.clone_into(&mut object);
        }
        let path = format!("/v1/trigger-runs?root={object}");
        wait_for("align, report and tell-ci ran", PATIENCE, async || {
            let runs = self.runs(&path).await?;
            let ended = |name: &str| runs.iter().any(|run| is_over(run, name));
            let all = ["alice/align", "alice/report", "alice/tell-ci"];
            Ok(all.into_iter().all(ended).then_some(()))
        })
        .await?;
        let runs = self.runs_of(&path, RUNS_OF_OBJECT).await?;
        let align = runs.iter().find(|run| run["rule"] == "alice/align");
        let job = align.map(|run| run["job_id"].to_string());
        let job = job.unwrap_or_default();
        let tree = self.mesh.smesh(&["tree", &job]).await?;
        let mut proof: Vec<String> = lines(&String::from_utf8_lossy(&tree.stdout));
        let wrote = self.wrote("aligned.txt")?;
        expect(
            &wrote,
            &[&format!("aligned reads/s17.fastq.gz in job {job}")],
        )?;
        expect(&self.wrote(&format!("report-{job}.txt"))?, &[&wrote[0]])?;
        proof.push(format!(
            "the object was announced twice; its job wrote once: {}",
            wrote[0]
        ));
        proof.push(self.received().await?);
        Ok((path, proof))
    }

    /// Checks that there are no more runs of the object, and that the CI got nothing more.
    async fn still_once(&self, path: &str) -> Result<(), Error> {
        self.runs_of(path, RUNS_OF_OBJECT).await?;
        self.received().await.map(drop)
    }

    /// The request that the CI got.
    async fn received(&self) -> Result<String, Error> {
        wait_for("the CI got its webhook", PATIENCE, async || {
            let requests = self.receiver.deliveries(CI);
            match &requests[..] {
                [] => Ok(None),
                [one] if one.signature == Some(Ok(())) => Ok(Some(format!(
                    "the CI got {} {}, signature verified",
                    one.body["type"].as_str().unwrap_or_default(),
                    one.body["data"]["user"]["notice"]["text"]
                ))),
                other => Err(wrong(format!("the CI got {other:?}"))),
            }
        })
        .await
    }

    /// `tail` stores the whole line.
    async fn out_of_memory(&self) -> Result<Played, Error> {
        if self.cluster.fact("oom").as_deref() != Some("yes") {
            let why = self.cluster.fact("oom_why").unwrap_or_default();
            return Ok(Played::Impossible(why));
        }
        let options = ["-Aphysics", "--mem=60", "-Jhungry"];
        let script = "head -c 70M /dev/zero | tail";
        let job = self.cluster.submit("alice", &options, script).await?;
        let types = "job.started,job.out_of_memory,job.completed";
        let description = format!("job {job} ran again and completed");
        let facts = self
            .mesh
            .wait_facts(&description, PATIENCE, types, |facts| {
                let of_job = facts
                    .iter()
                    .filter(|fact| fact.run().is_some_and(|run| run.0 == job));
                let of_job: Vec<_> = of_job.cloned().collect();
                let is_done = of_job
                    .iter()
                    .any(|fact| fact.kind == EventType::JobCompleted);
                is_done.then_some(of_job)
            })
            .await?;
        let mut proof = Vec::new();
        for fact in facts.iter().filter(|fact| fact.kind.is_end()) {
            let allocated = fact.event.job().map_or("", |job| job.alloc_tres.as_str());
            let memory = allocated
                .split(',')
                .find_map(|part| part.strip_prefix("mem="));
            proof.push(format!(
                "{} of job {job} with {}",
                fact.kind,
                memory.unwrap_or_default()
            ));
        }
        let ended = [("job.out_of_memory", "60M"), ("job.completed", "90M")];
        let expected = ended.map(|(kind, memory)| format!("{kind} of job {job} with {memory}"));
        expect(&proof, &expected.each_ref().map(String::as_str))?;
        let tree = self.mesh.smesh(&["tree", &job.to_string()]).await?;
        let tree = lines(&String::from_utf8_lossy(&tree.stdout));
        let [line] = &tree[..] else {
            return Err(wrong(format!("smesh tree {job}: {tree:?}")));
        };
        proof.insert(1, line.clone());
        Ok(Played::Once(proof))
    }

    async fn nightly(&self, at: DateTime<Utc>) -> Result<Vec<String>, Error> {
        let until = (at - Utc::now()).to_std().unwrap_or_default();
        let path = "/v1/trigger-runs?rule=alice/nightly";
        wait_for("the nightly job ended", until + PATIENCE, async || {
            let runs = self.runs(path).await?;
            let is_over = runs.iter().any(|run| is_over(run, "alice/nightly"));
            Ok(is_over.then_some(()))
        })
        .await?;
        let runs = self.runs_of(path, 1).await?;
        let job = runs[0]["job_id"].to_string();
        let tree = self.mesh.smesh(&["tree", &job]).await?;
        let mut proof = lines(&String::from_utf8_lossy(&tree.stdout));
        let wrote = self.wrote(&format!("nightly-{}.txt", at.format("%Y-%m-%d")))?;
        expect(&wrote, &["tidied up"])?;
        let rule = self.mesh.get("/v1/triggers/alice/nightly").await?.json();
        proof.push(format!(
            "it was due at {}, and is again at {}",
            at.format("%H:%M:%S"),
            rule["schedule"]["next"][0].as_str().unwrap_or_default()
        ));
        Ok(proof)
    }

    async fn runs(&self, path: &str) -> Result<Vec<Value>, Error> {
        let answer = self.mesh.get(path).await?;
        let runs = answer.json()["runs"].as_array().cloned();
        runs.ok_or_else(|| wrong(format!("GET {path}: {} {}", answer.status, answer.body)))
    }

    /// The runs, if there are exactly so many.
    async fn runs_of(&self, path: &str, number: usize) -> Result<Vec<Value>, Error> {
        let runs = self.runs(path).await?;
        match runs.len() == number {
            true => Ok(runs),
            false => Err(wrong(format!(
                "{} runs instead of {number}: {runs:?}",
                runs.len()
            ))),
        }
    }

    /// The lines that jobs wrote to a file.
    fn wrote(&self, name: &str) -> Result<Vec<String>, Error> {
        let path = self.rules.scratch.join(name);
        let text = std::fs::read_to_string(&path).map_err(Error::io("read", &path))?;
        Ok(lines(&text))
    }
}

/// True if a run of that rule has done all: its job has completed, or its message is sent.
fn is_over(run: &Value, rule: &str) -> bool {
    run["rule"] == rule && (run["ended_as"] == "completed" || run["state"] == "done")
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

fn expect(found: &[String], expected: &[&str]) -> Result<(), Error> {
    if found == expected {
        return Ok(());
    }
    Err(wrong(format!("{found:?} instead of {expected:?}")))
}

const fn wrong(problem: String) -> Error {
    Error::Machine(problem)
}
