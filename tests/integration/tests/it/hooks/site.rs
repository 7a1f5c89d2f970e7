//! A cluster with a site's own programs at some hooks, on which `smesh hooks` installs ours.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Output;

use integration::{Cluster, ClusterOptions, Programs, Slurm as _, wait_for};
use mesh_testkit::{copy_program, script};
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;

use super::{NAME, PATIENCE};

/// Hooks with a program of the site. The others are not set.
const SITE: &[&str] = &[
    "PrologSlurmctld",
    "JobComp",
    "Prolog",
    "HealthCheckProgram",
    "MailProg",
    "ResumeProgram",
    "SuspendProgram",
];

/// A cluster with a site's programs, and the folders of our hooks.
pub struct Site {
    pub cluster: Cluster,
    programs: Programs,
    folder: TempDir,
    /// Folder of the Lua plugins' lines, on a tmpfs.
    lines: TempDir,
}

impl Drop for Site {
    fn drop(&mut self) {
        let users = self.users_folder();
        // A lazy unmount, because a process may still be leaving.
        drop(
            std::process::Command::new("umount")
                .arg("-l")
                .arg(users)
                .status(),
        );
    }
}

impl Site {
    pub async fn start() -> Self {
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
        ] {
            fs::create_dir_all(path(name)).unwrap();
            fs::set_permissions(path(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        copy_program(&programs.hook, &path("mesh-hook"));
        for hook in SITE {
            // One process per call, with its arguments.
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
            ..ClusterOptions::small(NAME)
        };
        Self {
            cluster: Cluster::start(&options).await.unwrap(),
            programs,
            folder,
            lines: tempfile::tempdir_in("/dev/shm").unwrap(),
        }
    }

    fn users_folder(&self) -> PathBuf {
        self.lines.path().join("lines/users")
    }

    /// File of the users' cli_filter.lua.
    pub fn users_file(&self) -> PathBuf {
        self.users_folder().join("cli_filter.lines")
    }

    /// Mounts the file system of users' lines as printed by `smesh hooks print`.
    async fn mount_users(&self, plan: &Value) {
        let notes = plan["notes"].as_array().unwrap().iter();
        let line = notes
            .filter_map(|note| note.as_str()?.split_once("in /etc/fstab: "))
            .map(|(_, line)| line)
            .next()
            .unwrap();
        let fstab = self.path("fstab");
        fs::write(&fstab, format!("{line}\n")).unwrap();
        let status = Command::new("mount")
            .arg("--fstab")
            .arg(&fstab)
            .arg(self.users_folder())
            .status()
            .await
            .unwrap();
        assert!(status.success(), "mount by {line}");
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs `smesh hooks …`, as root on the controller.
    pub async fn hooks(&self, args: &[&str]) -> Output {
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

    /// Runs `smesh hooks flush --watch` until dropped.
    pub fn watch(&self) -> tokio::process::Child {
        Command::new(&self.programs.smesh)
            .args(["hooks", "flush", "--watch", "--interval", "200ms"])
            .arg("--hook-config")
            .arg(self.path("hook.toml"))
            .env_clear()
            .kill_on_drop(true)
            .spawn()
            .unwrap()
    }

    /// As an operator does: install, copy the lines, restart.
    pub async fn install(&self) {
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
        if !self.users_folder().exists() {
            self.mount_users(&plan).await;
        }
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
        let other_lines = old.lines().filter(|line| {
            let key = line.split('=').next().unwrap_or_default();
            !keys.iter().any(|other| other.eq_ignore_ascii_case(key))
        });
        let text: String = other_lines
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
        let is_new_trigger = |hook: &&Value| {
            hook["hook"].as_str().unwrap().starts_with("strigger") && hook["configured"] == false
        };
        for hook in hooks.iter().filter(is_new_trigger) {
            for line in lines(hook) {
                self.cluster
                    .ask("slurm", &["sh", "-c", &line])
                    .await
                    .unwrap();
            }
        }
    }

    pub fn configure(&self, nats: &str) {
        let lines = self.lines.path().join("lines");
        fs::create_dir_all(&lines).unwrap();
        for path in [self.lines.path(), &lines] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o711)).unwrap();
        }
        self.configure_lines(nats, &lines);
    }

    pub fn configure_lines(&self, nats: &str, lines: &Path) {
        let text = format!(
            "cluster = \"{NAME}\"\nspool = {:?}\nlines = {:?}\n[nats]\nurl = \"{nats}\"\n",
            self.path("spool"),
            lines
        );
        fs::write(self.path("hook.toml"), text).unwrap();
        let text = format!(
            "[mesh]\ncluster = \"{NAME}\"\ndata_dir = {:?}\n[mesh.nats]\nurl = \"{nats}\"\n[slurm]\nbin_dir = {:?}\n",
            self.path("data"),
            self.cluster.commands()
        );
        fs::write(self.path("mesh.toml"), text).unwrap();
        // The hooks' files belong to SlurmUser, as with `smesh up`.
        for path in [&self.path("spool"), lines, &self.path("hook.toml")] {
            let status = std::process::Command::new("chown")
                .arg("-R")
                .arg("slurm:")
                .arg(path)
                .status()
                .unwrap();
            assert!(status.success(), "chown {}", path.display());
        }
    }

    /// Arguments of the calls of a site's program.
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

    /// Waits until a site's program was called like this.
    pub async fn wait_ran(&self, hook: &str, is_done: impl Fn(&[String]) -> bool) {
        let called = wait_for(hook, PATIENCE, async || {
            Ok(is_done(&self.ran(hook)).then_some(()))
        });
        if let Err(error) = called.await {
            panic!("{error}: {:?}", self.ran(hook));
        }
    }

    /// A login through PAM. The machine's own files are not changed: only this process sees the modified one.
    pub async fn log_in(&self) {
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
