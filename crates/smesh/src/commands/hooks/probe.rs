//! `smesh hooks test`: sends a doorbell as every installed hook would, and verifies that it arrives.
//!
//! It does not run the site's script, which would boot nodes or send mail. It runs only our part of the script, as the same user, with
//! a doorbell marked as a probe.
//! The probe has arrived once the stream no longer holds it, because only the intended consumer removes it.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mesh_events::catalogue::MESH_HOOKS;
use mesh_hook::nats::Connection;
use mesh_hook::{Config, lines, ring, sender};
use mesh_runtime::Context;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::kinds::HookHosts;
use super::plan::{Hook, MARK};
use super::shell;
use crate::cli::{Global, HookFiles};
use crate::error::Error;
use crate::{settings, show};

/// How long the consumer may take. A service that was just started first has to find its position in the stream.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(10);
/// JetStream's error code for "no message found".
const NOT_FOUND: u64 = 404;

/// Result of a test.
#[derive(Debug)]
enum HookTestResult {
    NotInstalled,
    /// Acknowledged by its consumer, after this time.
    Arrived(Duration),
    /// Stored in the stream. The text says why the acknowledgement could not be observed.
    Sent(String),
    Failed(String),
}

impl HookTestResult {
    const fn is_bad(&self) -> bool {
        matches!(self, Self::Failed(_))
    }

    fn describe(&self) -> (&'static str, String) {
        match self {
            Self::NotInstalled => ("–", String::new()),
            Self::Arrived(after) => (
                "ok",
                format!("processed after {:.0} ms", after.as_secs_f64() * 1e3),
            ),
            Self::Sent(why) => (
                "rung",
                format!("stored on the stream; whether it was processed is unknown: {why}"),
            ),
            Self::Failed(why) => ("FAIL", why.clone()),
        }
    }
}

pub(super) async fn run(global: &Global, files: HookFiles) -> Result<ExitCode, Error> {
    let (conf, plan) = super::plan_here(global, &files).await?;
    let config = super::hook_config(global, files.hook_config.as_deref());
    let context = settings::load(global, CancellationToken::new()).ok();
    let slurm_user = conf.slurm_user().to_owned();
    let outcomes = tokio::task::spawn_blocking(move || {
        let probe = Probe {
            config,
            context,
            slurm_user,
        };
        plan.hooks
            .into_iter()
            .map(|hook| {
                let outcome = probe.hook(&hook);
                (hook, outcome)
            })
            .collect::<Vec<_>>()
    })
    .await
    .map_err(|error| Error::Failed(error.to_string()))?;
    for (hook, outcome) in &outcomes {
        let (argument, found) = outcome.describe();
        if global.json {
            show::line(to_json(hook, outcome))?;
        } else {
            show::line(format!(
                "{argument:<5} {:<20} {}",
                hook.name,
                show::clean(&found)
            ))?;
        }
    }
    let installed = outcomes
        .iter()
        .filter(|(_, outcome)| !matches!(outcome, HookTestResult::NotInstalled))
        .count();
    let bad = outcomes
        .iter()
        .filter(|(_, outcome)| outcome.is_bad())
        .count();
    if !global.json {
        show::line(show::bold(&match (installed, bad) {
            (0, _) => "no hook is installed; see `smesh hooks print`".to_owned(),
            (n, 0) => format!("{n} installed, all probes arrived"),
            (n, bad) => format!("{n} installed, {bad} probes did not arrive"),
        }))?;
    }
    Ok(if installed > 0 && bad == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn to_json(hook: &Hook, outcome: &HookTestResult) -> Value {
    let millis = match outcome {
        HookTestResult::Arrived(after) => Some(after.as_secs_f64() * 1e3),
        _ => None,
    };
    let (outcome, problem) = match outcome {
        HookTestResult::NotInstalled => ("not_installed", None),
        HookTestResult::Arrived(_) => ("arrived", None),
        HookTestResult::Sent(why) => ("rung", Some(why)),
        HookTestResult::Failed(why) => ("failed", Some(why)),
    };
    json!({ "hook": hook.name, "on": hook.hosts.name(), "outcome": outcome, "millis": millis, "problem": problem })
}

struct Probe {
    config: PathBuf,
    context: Option<Context>,
    slurm_user: String,
}

impl Probe {
    fn hook(&self, hook: &Hook) -> HookTestResult {
        let Some(installed) = &hook.installed else {
            return HookTestResult::NotInstalled;
        };
        let started = Instant::now();
        let question = if matches!(hook.name, "JobSubmit" | "CliFilter") {
            self.line(hook)
        } else {
            self.script(hook, installed)
        };
        let taken =
            question.and_then(|(config, question)| self.wait_until_taken(&config, &question));
        match taken {
            Ok(None) => HookTestResult::Arrived(started.elapsed()),
            Ok(Some(why)) => HookTestResult::Sent(why),
            Err(why) => HookTestResult::Failed(why),
        }
    }

    /// Runs our part of a script. Returns its configuration and the JetStream request that finds the message.
    fn script(&self, hook: &Hook, installed: &Path) -> Result<(Config, Value), String> {
        let arguments = our_part(installed)?;
        let Some((program, args)) = arguments.split_first() else {
            return Err(format!("{} runs nothing", installed.display()));
        };
        let config = args
            .iter()
            .skip_while(|argument| *argument != "--config")
            .nth(1)
            .map_or(Path::new(mesh_hook::config::DEFAULT_PATH), Path::new);
        let mut command = Command::new(program);
        command.args(args);
        if !args.iter().any(|argument| argument == "--hook") {
            command.args(["--hook", hook.name]);
        }
        command
            .args(["--probe", &Uuid::now_v7().to_string()])
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::null());
        // As the user Slurm runs it as, because this also tests that this user may read the configuration.
        if hook.hosts == HookHosts::Controllers && rustix::process::geteuid().is_root() {
            let user = uzers::get_user_by_name(&self.slurm_user).ok_or_else(|| {
                format!("SlurmUser {} is not a user of this host", self.slurm_user)
            })?;
            command.uid(user.uid()).gid(user.primary_group_id());
        }
        let output = command
            .output()
            .map_err(|error| format!("run {program}: {error}"))?;
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        let sequence = printed.lines().find_map(|line| {
            line.strip_prefix("probe delivered ")?
                .trim()
                .parse::<u64>()
                .ok()
        });
        let Some(sequence) = sequence else {
            let problem = printed.lines().next().unwrap_or("no output");
            return Err(problem.trim_start_matches("mesh-hook: ").to_owned());
        };
        let config = Config::load(config).map_err(|error| error.to_string())?;
        Ok((config, json!({ "seq": sequence })))
    }

    /// Appends a line as the Lua plugins do, and delivers it.
    fn line(&self, hook: &Hook) -> Result<(Config, Value), String> {
        let config = Config::load(&self.config).map_err(|error| Error::Hooks(error).to_string())?;
        let Some(folder) = &config.lines else {
            return Err(format!("{} has no `lines`", self.config.display()));
        };
        let (source, kind) = match hook.name {
            "JobSubmit" => (lines::Source::JobSubmit, "submit"),
            _ => (lines::Source::CliFilter, "cli"),
        };
        let folder = lines::Folder::new(folder);
        let path = folder.file(source);
        if !folder.prepare(source).map_err(|error| error.to_string())? {
            return Err(format!(
                "{} does not exist: `smesh hooks print` shows how to mount it",
                path.parent().unwrap_or(&path).display()
            ));
        }
        let seconds = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        let line = format!("1 {kind} {seconds} root - {}\n", Uuid::now_v7());
        std::fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .and_then(|mut file| file.write_all(line.as_bytes()))
            .map_err(|error| format!("append to {}: {error}", path.display()))?;
        sender::flush(&config, ACCEPT_TIMEOUT, false).map_err(|error| error.to_string())?;
        let subject = mesh_events::subject::doorbell(&config.cluster, hook.name);
        Ok((config, json!({ "last_by_subj": subject })))
    }

    /// Waits until the stream no longer holds a message. Returns the reason if that cannot be observed.
    fn wait_until_taken(
        &self,
        config: &Config,
        question: &Value,
    ) -> Result<Option<String>, String> {
        let deadline = Instant::now() + ACCEPT_TIMEOUT;
        let mut connection = match self.observer(config, deadline) {
            Ok(connection) => connection,
            Err(why) => return Ok(Some(why)),
        };
        let subject = format!("$JS.API.STREAM.MSG.GET.{MESH_HOOKS}");
        while Instant::now() < deadline {
            let answer = match connection.request(&subject, question.to_string().as_bytes()) {
                Ok(answer) => answer,
                Err(error) => return Ok(Some(error.to_string())),
            };
            let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
            match answer["error"]["code"].as_u64() {
                Some(NOT_FOUND) => return Ok(None),
                Some(_) => return Ok(Some(answer["error"]["description"].to_string())),
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        Err(format!(
            "it is on the stream, but was not processed within {} s; check that ingest and node-watcher run",
            ACCEPT_TIMEOUT.as_secs()
        ))
    }

    /// A connection that may read the stream. The hook's user may not.
    fn observer(&self, config: &Config, deadline: Instant) -> Result<Connection, String> {
        let context = self.context.as_ref().ok_or("no mesh.toml on this host")?;
        let mut config = config.clone();
        let own = context.mesh.data_dir.join("private/nats-passwords/admin");
        let nats = &context.mesh.nats;
        if let Ok(password) = secret_file::read(&own) {
            config.nats.user = Some("admin".into());
            config.nats.password = Some(password.trim_end().into());
        } else {
            let password = match &nats.password_file {
                Some(file) => secret_file::read(file)
                    .ok()
                    .map(|text| text.trim_end().into()),
                None => nats.password.clone(),
            };
            config.nats.user = nats.user.clone();
            config.nats.password = password;
        }
        ring::connect(&config, deadline).map_err(|error| error.to_string())
    }
}

/// The words of an installed script that run mesh-hook, without the program it chains to.
fn our_part(installed: &Path) -> Result<Vec<String>, String> {
    if installed.file_name() == Some("mesh-hook".as_ref()) {
        return Ok(vec![installed.to_string_lossy().into_owned()]);
    }
    let text = std::fs::read_to_string(installed)
        .map_err(|error| format!("read {}: {error}", installed.display()))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("exec "))
        .filter(|_| text.contains(MARK))
        .ok_or_else(|| format!("{} is not a script of slurm-mesh", installed.display()))?;
    Ok(shell::split_arguments(line)
        .into_iter()
        .take_while(|argument| argument != "--chain" && argument != "--")
        .collect())
}
