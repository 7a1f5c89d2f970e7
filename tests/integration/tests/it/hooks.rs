//! Every hook at once on a real cluster, as `smesh hooks` installs them: jobs run, the site's own programs run, every doorbell arrives.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use integration::{Cluster, ClusterOptions, Programs, Slurm as _, wait_for};
use mesh_bus::{Bus, Handler, Message, Outcome};
use mesh_events::catalogue::{CONSUMERS, MESH_HOOKS};
use mesh_events::proto::mesh::hook::v1::Doorbell;
use mesh_testkit::NatsServer;
use prost::Message as _;
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

/// Slurm looks at triggers every 15 s, and at nodes that do not come up every so often.
const PATIENCE: Duration = Duration::from_secs(120);
const NAME: &str = "meshhooks";
const BASE_PORT: u16 = 28_400;

/// What the site has had at its hooks all along; nothing at the others.
const SITE: &[&str] = &[
    "PrologSlurmctld",
    "JobComp",
    "Prolog",
    "HealthCheckProgram",
    "MailProg",
    "ResumeProgram",
    "SuspendProgram",
];

/// Takes doorbells and keeps them.
#[derive(Clone, Default)]
struct Bells(Arc<Mutex<Vec<Doorbell>>>);

impl Handler for Bells {
    async fn handle(&self, message: &Message) -> Outcome {
        let bell = Doorbell::decode(message.body.clone()).unwrap();
        self.0.lock().unwrap().push(bell);
        Outcome::Done
    }
}

impl Bells {
    /// Every reader of doorbells there is.
    fn listen(&self, bus: &Bus, stop: &CancellationToken) {
        for consumer in CONSUMERS.iter().filter(|one| one.stream == MESH_HOOKS) {
            let (bus, bells, stop) = (bus.clone(), self.clone(), stop.clone());
            tokio::spawn(async move {
                let durable = consumer.durable(NAME);
                bus.consume(MESH_HOOKS, &durable, 1, bells, &stop).await
            });
        }
    }

    fn all(&self) -> Vec<Doorbell> {
        self.0.lock().unwrap().clone()
    }

    /// Names of the hooks that rang because something happened.
    fn names(&self) -> BTreeSet<String> {
        let happened = self.all().into_iter().filter(|bell| !bell.probe);
        happened.map(|bell| bell.hook).collect()
    }

    async fn wait_for(&self, what: &str, found: impl Fn(&Doorbell) -> bool) {
        let outcome = wait_for(what, PATIENCE, async || {
            Ok(self.all().iter().any(&found).then_some(()))
        });
        if let Err(error) = outcome.await {
            panic!("{error}; rung so far: {:?}", self.names());
        }
    }
}

/// A cluster with a site's programs, and where our hooks go.
struct Site {
    cluster: Cluster,
    programs: Programs,
    folder: TempDir,
}

impl Site {
    async fn start() -> Self {
        let folder = tempfile::Builder::new()
            .prefix("mesh-hooks-")
            .tempdir_in("/tmp")
            .unwrap();
        let programs = Programs::find().unwrap();
        let path = |name: &str| folder.path().join(name);
        for (name, mode) in [
            (".", 0o755),
            ("site", 0o755),
            ("ran", 0o1777),
            ("spool", 0o755),
            ("lines", 0o711),
        ] {
            fs::create_dir_all(path(name)).unwrap();
            fs::set_permissions(path(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        fs::copy(&programs.hook, path("mesh-hook")).unwrap();
        for hook in SITE {
            // A process per call, and what it was called with.
            let ran = path("ran");
            script(
                &path("site").join(hook),
                &format!("echo \"$*\" >{}/{hook}.$$", ran.display()),
            );
        }
        let site = path("site");
        let mut conf = format!(
            "JobCompType=jobcomp/script\nJobCompLoc={}/JobComp\nHealthCheckInterval=5\nPrologFlags=Alloc\n",
            site.display()
        );
        for hook in SITE.iter().filter(|hook| **hook != "JobComp") {
            conf.push_str(&format!("{hook}={}/{hook}\n", site.display()));
        }
        fs::write(path("site.conf"), conf).unwrap();
        let options = ClusterOptions {
            hooks: false,
            knobs: vec![
                ("NODES", "2".into()),
                ("GPU_NODES", "0".into()),
                ("CLOUD", "1".into()),
                ("NODB", "1".into()),
                ("RESUME_TIMEOUT", "10".into()),
                ("EXTRA_CONF", path("site.conf").display().to_string()),
            ],
            ..ClusterOptions::small(NAME, BASE_PORT)
        };
        Self {
            cluster: Cluster::start(&options).await.unwrap(),
            programs,
            folder,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `smesh hooks …`, as root on the controller.
    async fn hooks(&self, args: &[&str]) -> Output {
        let mut command = Command::new(&self.programs.smesh);
        command
            .arg("hooks")
            .args(args)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("SLURM_CONF", self.cluster.slurm_conf())
            .env("MESH_CONFIG", self.path("mesh.toml"));
        command.output().await.unwrap()
    }

    /// `smesh hooks flush --watch`, until it is dropped.
    fn watch(&self) -> tokio::process::Child {
        Command::new(&self.programs.smesh)
            .args(["hooks", "flush", "--watch", "--interval", "200ms"])
            .arg("--hook-config")
            .arg(self.path("hook.toml"))
            .env_clear()
            .kill_on_drop(true)
            .spawn()
            .unwrap()
    }

    /// As a person does it: install, copy the lines, restart.
    async fn install(&self) {
        let (program, config) = (self.path("mesh-hook"), self.path("hook.toml"));
        let (folder, conf) = (self.path("hooks"), self.cluster.slurm_conf());
        let files = [
            "--program",
            program.to_str().unwrap(),
            "--hook-config",
            config.to_str().unwrap(),
        ];
        let folder = folder.to_str().unwrap();
        let done = self
            .hooks(&[&["install", folder][..], &files].concat())
            .await;
        assert!(done.status.success(), "{done:?}");
        let printed = self
            .hooks(&[&["print", "--json", "--dir", folder][..], &files].concat())
            .await;
        let plan: Value = serde_json::from_slice(&printed.stdout).unwrap();
        let lines = |hook: &Value| -> Vec<String> {
            let lines = hook["lines"].as_array().unwrap().iter();
            lines
                .map(|line| line.as_str().unwrap().to_owned())
                .collect()
        };
        let hooks = plan["hooks"].as_array().unwrap();
        let ours: Vec<String> = hooks
            .iter()
            .filter(|hook| hook["into"] == conf.to_str().unwrap())
            .flat_map(&lines)
            .collect();
        let keys: Vec<&str> = ours
            .iter()
            .filter_map(|line| line.split('=').next())
            .collect();
        let old = fs::read_to_string(&conf).unwrap();
        let kept = old.lines().filter(|line| {
            let key = line.split('=').next().unwrap_or_default();
            !keys.iter().any(|other| other.eq_ignore_ascii_case(key))
        });
        let text: String = kept
            .chain(ours.iter().map(String::as_str))
            .map(|line| format!("{line}\n"))
            .collect();
        fs::write(&conf, text).unwrap();
        for file in ["job_submit.lua", "cli_filter.lua"] {
            fs::copy(Path::new(folder).join(file), conf.with_file_name(file)).unwrap();
        }
        self.cluster.control("stop", "slurmctld").await.unwrap();
        self.cluster.control("start", "slurmctld").await.unwrap();
        self.cluster
            .ask("root", &["scontrol", "reconfigure"])
            .await
            .unwrap();
        for hook in hooks
            .iter()
            .filter(|hook| hook["hook"].as_str().unwrap().starts_with("strigger"))
        {
            for line in lines(hook) {
                self.cluster
                    .ask("slurm", &["sh", "-c", &line])
                    .await
                    .unwrap();
            }
        }
    }

    fn configure(&self, nats: &str) {
        let text = format!(
            "cluster = \"{NAME}\"\nspool = {:?}\nlines = {:?}\n[nats]\nurl = \"{nats}\"\n",
            self.path("spool"),
            self.path("lines")
        );
        fs::write(self.path("hook.toml"), text).unwrap();
        let text = format!(
            "[mesh]\ncluster = \"{NAME}\"\ndata_dir = {:?}\n[mesh.nats]\nurl = \"{nats}\"\n[slurm]\nbin_dir = {:?}\n",
            self.path("data"),
            self.cluster.commands()
        );
        fs::write(self.path("mesh.toml"), text).unwrap();
        for (file, mode) in [("job_submit.lines", 0o600), ("cli_filter.lines", 0o622)] {
            let path = self.path("lines").join(file);
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }
        // SlurmUser's are the hooks' files, as `smesh up` makes them.
        for name in ["spool", "lines", "hook.toml"] {
            let status = std::process::Command::new("chown")
                .arg("-R")
                .arg("slurm:")
                .arg(self.path(name))
                .status()
                .unwrap();
            assert!(status.success(), "chown {name}");
        }
    }

    /// With what a program of the site was called.
    fn ran(&self, hook: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path("ran")).unwrap().map(Result::unwrap);
        entries
            .filter(|entry| {
                entry
                    .file_name()
                    .to_string_lossy()
                    .starts_with(&format!("{hook}."))
            })
            .map(|entry| fs::read_to_string(entry.path()).unwrap().trim().to_owned())
            .collect()
    }

    /// A login through PAM. The machine's own files stay as they are: only this process sees the changed one.
    async fn log_in(&self) {
        let service = self.path("pam-su");
        let line = format!(
            "session optional pam_exec.so quiet type=open_session {}/hooks/pam",
            self.folder.path().display()
        );
        fs::write(
            &service,
            format!("auth sufficient pam_rootok.so\naccount required pam_permit.so\n{line}\n"),
        )
        .unwrap();
        let status = Command::new("unshare")
            .args(["--mount", "sh", "-c"])
            .arg("mount --bind \"$1\" /etc/pam.d/su && su alice -c true")
            .arg("sh")
            .arg(&service)
            .status()
            .await
            .unwrap();
        assert!(status.success(), "log in: {status}");
    }
}

fn script(path: &Path, text: &str) {
    fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_hook_rings_and_the_sites_programs_run_as_ever() {
    let mut nats = NatsServer::start().await;
    let (site, stop) = (Site::start().await, CancellationToken::new());
    let cluster = &site.cluster;
    site.configure(&nats.url());
    let config = mesh_bus::Config {
        url: nats.url(),
        ..mesh_bus::Config::default()
    };
    let bus = Bus::connect(&config, "admin").await.unwrap();
    bus.ready(&stop).await.unwrap();
    let bells = Bells::default();
    bells.listen(&bus, &stop);
    site.install().await;

    // What the Lua plugins write is delivered while this runs, whether a hook is called or not.
    let watch = site.watch();

    // Nodes that go and come back, and one in the cloud that does not come up since its cloud is gone.
    cluster.control("kill", "power").await.unwrap();
    let cloud = cluster
        .submit("alice", &["--partition=cloud"], "true")
        .await
        .unwrap();
    for (state, reason) in [("DRAIN", "Reason=test"), ("DOWN", "Reason=test")] {
        let state = format!("State={state}");
        cluster
            .ask(
                "root",
                &["scontrol", "update", "NodeName=n2", &state, reason],
            )
            .await
            .unwrap();
    }
    let job = cluster
        .submit(
            "alice",
            &[
                "--nodelist=n1",
                "--mail-type=ALL",
                "--mail-user=ops@example.org",
            ],
            "true",
        )
        .await
        .unwrap();
    cluster
        .wait_state(&job.to_string(), &["COMPLETED"], PATIENCE)
        .await
        .unwrap();
    site.log_in().await;
    for hook in [
        "PrologSlurmctld",
        "EpilogSlurmctld",
        "JobComp",
        "Prolog",
        "Epilog",
        "MailProg",
        "CliFilter",
    ] {
        bells
            .wait_for(hook, |bell| bell.hook == hook && bell.job_id == job)
            .await;
    }
    bells
        .wait_for("a submission", |bell| bell.hook == "JobSubmit")
        .await;
    bells
        .wait_for("a login", |bell| {
            bell.login
                .as_ref()
                .is_some_and(|login| login.user == "alice" && login.service == "su")
        })
        .await;
    bells
        .wait_for("a health check", |bell| {
            bell.hook == "HealthCheckProgram" && bell.nodes == "n1"
        })
        .await;
    bells
        .wait_for("power up", |bell| {
            bell.hook == "ResumeProgram"
                && bell.nodes == "c1"
                && bell.environment["SLURM_RESUME_FILE"].contains("c1")
        })
        .await;
    bells
        .wait_for("a node down", |bell| {
            bell.hook == "strigger-down" && bell.nodes.contains("n2")
        })
        .await;
    bells
        .wait_for("a node that did not come up", |bell| {
            bell.hook == "ResumeFailProgram" && bell.nodes == "c1"
        })
        .await;
    cluster
        .ask("root", &["scancel", &cloud.to_string()])
        .await
        .unwrap();
    cluster
        .ask(
            "root",
            &[
                "scontrol",
                "update",
                "NodeName=c1",
                "State=POWER_DOWN_FORCE",
            ],
        )
        .await
        .unwrap();
    bells
        .wait_for("power down", |bell| {
            bell.hook == "SuspendProgram" && bell.nodes == "c1"
        })
        .await;

    // The site's programs got what Slurm gave them.
    for (hook, arguments) in [
        ("PrologSlurmctld", ""),
        ("JobComp", ""),
        ("Prolog", ""),
        ("HealthCheckProgram", ""),
        ("ResumeProgram", "c1"),
        ("SuspendProgram", "c1"),
    ] {
        let ran = site.ran(hook);
        assert!(ran.iter().any(|line| line == arguments), "{hook}: {ran:?}");
    }
    let mails = site.ran("MailProg");
    assert!(
        mails.len() >= 2
            && mails
                .iter()
                .all(|mail| mail.starts_with("-s ") && mail.ends_with(" ops@example.org")),
        "{mails:?}"
    );
    let states = cluster
        .ask("root", &["sinfo", "-h", "-N", "-n", "n1", "-o", "%T %E"])
        .await
        .unwrap();
    assert!(states.contains("idle"), "{states}");

    drop(watch);
    everything_is_seen_to_arrive(&site).await;

    // NATS is away: a job runs as ever, and its doorbells follow.
    nats.kill();
    let job = cluster
        .submit("alice", &["--nodelist=n1"], "true")
        .await
        .unwrap();
    cluster
        .wait_state(&job.to_string(), &["COMPLETED"], PATIENCE)
        .await
        .unwrap();
    nats.restart().await;
    let config = site.path("hook.toml");
    wait_for("the spool is flushed", PATIENCE, async || {
        let flushed = site
            .hooks(&["flush", "--hook-config", config.to_str().unwrap()])
            .await;
        Ok(flushed.status.success().then_some(()))
    })
    .await
    .unwrap();
    for hook in [
        "PrologSlurmctld",
        "EpilogSlurmctld",
        "JobComp",
        "Prolog",
        "Epilog",
    ] {
        bells
            .wait_for(hook, |bell| bell.hook == hook && bell.job_id == job)
            .await;
    }
    stop.cancel();
}

/// `smesh hooks test`, with readers that take what it rings.
async fn everything_is_seen_to_arrive(site: &Site) {
    let (folder, config) = (site.path("hooks"), site.path("hook.toml"));
    let tested = site
        .hooks(&[
            "test",
            "--json",
            "--dir",
            folder.to_str().unwrap(),
            "--hook-config",
            config.to_str().unwrap(),
        ])
        .await;
    let said = String::from_utf8(tested.stdout.clone()).unwrap();
    assert!(tested.status.success(), "{tested:?}");
    let rows: Vec<Value> = said
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for row in &rows {
        // The machine's own /etc/pam.d is not the test's to change.
        let expected = if row["hook"] == "Pam" {
            "not_installed"
        } else {
            "arrived"
        };
        assert_eq!(row["outcome"], expected, "{row}");
    }
    assert!(rows.len() >= 15, "{said}");
}
