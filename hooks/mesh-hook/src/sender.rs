//! Handles one doorbell, from the hook's environment until it is safe, then delivers the backlog.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use mesh_events::hooks;
use mesh_events::proto::mesh::hook::v1::Doorbell;

use crate::args::Options;
use crate::config::{Config, DEFAULT_PATH};
use crate::doorbell::{Call, doorbell, hook_of, is_news};
use crate::evidence::Environment;
use crate::flush::{self, Flushed};
use crate::gpus::{self, GpuChange};
use crate::guard::SAFE;
use crate::nats::Connection;
use crate::privilege;
use crate::report::{report, warn};
use crate::ring::{self, Outcome};
use crate::slots;
use crate::spool::{Lock, Spool, State};

/// Time limit for delivering the backlog. The hook's caller does not wait for it, but processes should not pile up.
const FLUSH_PATIENCE: Duration = Duration::from_secs(10);
/// Time limit for other calls to leave the folder of `gpu_map`, which takes them less than a millisecond. Leaves time for NATS.
const GPU_PATIENCE: Duration = Duration::from_millis(50);
/// Largest SLURM_RESUME_FILE that is sent, in bytes.
const MAX_RESUME_FILE: u64 = 16 << 10;

/// Delivers the doorbell, reports it on standard error with [`SAFE`], then delivers the backlog.
pub fn run(options: &Options, started: Instant) {
    if let Some(complaint) = &options.complaint {
        report(complaint);
    }
    let user = rustix::process::geteuid().as_raw();
    // The slot is held until this process ends.
    let (config, slot) = match begin(&slots::defaults(user), config_path(options)) {
        Ok(begun) => begun,
        Err(problem) => return report(format_args!("doorbell not sent: {problem}")),
    };
    unix_process::detached::started();
    let environment: Environment = std::env::vars_os().collect();
    let Some(hook) = hook(options, &environment) else {
        return report(
            "doorbell not sent: the environment does not identify the hook; add --hook NAME",
        );
    };
    let called_at = options.called_at.unwrap_or_else(SystemTime::now);
    if options.probe.is_none() {
        if let Some(change) = gpus::change_of(&hook, &environment, called_at) {
            map_gpus(&config, &change, slot.is_some(), started);
        }
        if !is_news(&hook, &environment) {
            return safe();
        }
    }
    if slot.is_some()
        && let Err(error) = privilege::become_owner_of(&config.spool)
    {
        return report(format_args!(
            "doorbell not sent: switch to the owner of {}: {error}",
            config.spool.display()
        ));
    }
    let host = host();
    let mut doorbell = doorbell(&Call {
        cluster: &config.cluster,
        hook: &hook,
        host: &host,
        called_at,
        environment: &environment,
        arguments: &options.arguments,
    });
    if let Some(id) = options.probe {
        doorbell.id = id.to_string();
        doorbell.probe = true;
    }
    if slot.is_none() {
        return without_spool(&config, options, &doorbell, started);
    }
    // Only for ResumeProgram: in other hooks the variable may come from a user, and this process may be root.
    if doorbell.hook == "ResumeProgram"
        && let Some(text) = resume_file(&environment)
    {
        doorbell
            .environment
            .insert("SLURM_RESUME_FILE".into(), text);
    }
    let spool = Spool::new(&config.spool, config.max_spool_bytes);
    match ring::ring(&config, &doorbell, called_at, started) {
        Outcome::Delivered {
            sequence,
            mut connection,
        } => {
            if options.probe.is_some() {
                probed(&format!("delivered {sequence}"));
            }
            safe();
            after(&config, &host, &spool, &mut connection);
        }
        Outcome::Spooled(error) => {
            if spool.ends(State::Full) {
                report("spool writable again");
            }
            if options.probe.is_some() {
                probed(&format!("spooled: {error}"));
            }
            if spool.begins(State::Unavailable) {
                report(format_args!(
                    "doorbells are spooled to {} until NATS accepts them: {error}",
                    config.spool.display()
                ));
            }
            safe();
        }
        Outcome::Lost(error, lost) => {
            if options.probe.is_some() {
                probed(&format!("lost: {error}; {lost}"));
            }
            if spool.begins(State::Full) {
                report(format_args!(
                    "doorbells are lost until this is fixed, and changes are found by ingest's polls: {error}; {lost}"
                ));
            }
            safe();
        }
    }
}

/// Reads the configuration and takes a slot. Its file, too, may be on a disk that hangs, so it is read while a slot of the defaults is held;
/// then one of the folder that it names is taken instead.
fn begin(defaults: &[PathBuf], path: &Path) -> Result<(Config, Option<Lock>), String> {
    let full = |disk: &Path| {
        format!(
            "{} earlier calls hang; check the disk of {}; ingest's next poll finds the change",
            slots::MAX_CONCURRENT_CALLS,
            disk.display()
        )
    };
    let first = slots::take(defaults);
    if let Ok(None) = first {
        return Err(full(path));
    }
    let config = Config::load(path).map_err(|error| error.to_string())?;
    let configured = config.slots.as_slice();
    let named = match configured {
        [] => Err(None),
        folders => slots::take(folders).map_err(Some),
    };
    match (named, first) {
        (Ok(Some(slot)), _) | (Err(_), Ok(Some(slot))) => Ok((config, Some(slot))),
        (Ok(None), _) | (Err(_), Ok(None)) => Err(full(&config.spool)),
        (Err(of_named), Err(of_defaults)) => {
            let named = of_named.map_or_else(String::new, |error| format!("{error}; "));
            warn(format_args!(
                "spool not used, calls not counted: {named}{of_defaults}"
            ));
            Ok((config, None))
        }
    }
}

/// Writes the files of `gpu_map`, before root drops its privileges. A fault is reported and has no other effect.
fn map_gpus(config: &Config, change: &GpuChange, has_slot: bool, started: Instant) {
    // Checked when the configuration was read.
    let Ok(Some(map)) = config.gpu_map() else {
        return;
    };
    let recorded = match has_slot {
        true => gpus::record(&map, change, started + GPU_PATIENCE),
        false => Err(std::io::Error::other(
            "calls cannot be counted (see slots in hook.toml)",
        )),
    };
    if let Err(error) = recorded {
        let (folder, job) = (map.folder.display(), change.job);
        report(format_args!(
            "GPUs of job {job} not mapped: {folder}: {error}"
        ));
    }
}

/// Delivers over NATS, or loses the doorbell. Without a slot, a sender on a disk that hangs would be one of any number, so it touches none.
fn without_spool(config: &Config, options: &Options, doorbell: &Doorbell, started: Instant) {
    let (outcome, lost) = match ring::send(config, doorbell, started) {
        Ok((sequence, _)) => (format!("delivered {sequence}"), None),
        Err(error) => (format!("lost: {error}; no slot"), Some(error)),
    };
    if options.probe.is_some() {
        probed(&outcome);
    }
    if let Some(error) = lost {
        report(format_args!(
            "doorbell lost, not spooled because calls cannot be counted (see slots in hook.toml): {error}"
        ));
    }
    safe();
}

/// Name of the hook: as configured, else as its environment identifies it.
pub fn hook(options: &Options, environment: &Environment) -> Option<String> {
    let named = options.hook.as_ref().map(|hook| hook.to_string_lossy());
    let Some(named) = named else {
        return hook_of(environment).map(str::to_owned);
    };
    Some(hooks::canonical_name(&named).map_or_else(|| named.into_owned(), str::to_owned))
}

/// Delivers the backlog, and reports recovery once.
fn after(config: &Config, host: &str, spool: &Spool, connection: &mut Connection) {
    let until = Instant::now() + FLUSH_PATIENCE;
    // Undelivered doorbells stay in the spool for the next call.
    if let Ok(flushed) = flush::flush(config, host, connection, until) {
        report_recovery(spool, &flushed);
    }
}

/// Reports once that doorbells are delivered again.
fn report_recovery(spool: &Spool, flushed: &Flushed) {
    if flushed.remaining > 0 {
        return;
    }
    let (unavailable, full) = (spool.ends(State::Unavailable), spool.ends(State::Full));
    if unavailable || full {
        warn(format_args!(
            "NATS accepts doorbells again; {} spooled ones delivered",
            flushed.delivered
        ));
    }
}

/// Delivers the whole backlog; with `retry_refused`, also doorbells that NATS has refused.
///
/// # Errors
/// If NATS is unreachable or the disk refuses.
pub fn flush(
    config: &Config,
    patience: Duration,
    retry_refused: bool,
) -> Result<Flushed, flush::Error> {
    let flushed = flush::flush_all(config, &host(), patience, retry_refused)?;
    // An empty spool does not prove that NATS works.
    if flushed.delivered > 0 {
        let spool = Spool::new(&config.spool, config.max_spool_bytes);
        report_recovery(&spool, &flushed);
    }
    Ok(flushed)
}

/// Host name of this machine.
pub fn host() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

/// Path of the configuration.
pub fn config_path(options: &Options) -> &Path {
    options
        .config
        .as_ref()
        .map_or(Path::new(DEFAULT_PATH), PathBuf::as_path)
}

/// The jobs that are to get the nodes, as slurmctld reports to ResumeProgram. The file is readable only while that program runs (seen
/// on 22.05), so it may be gone.
fn resume_file(environment: &Environment) -> Option<String> {
    let path = environment.get(std::ffi::OsStr::new("SLURM_RESUME_FILE"))?;
    // NONBLOCK: a pipe with that name would block forever.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
        .open(path)
        .ok()?;
    if !file.metadata().as_ref().is_ok_and(fs::Metadata::is_file) {
        return None;
    }
    let mut text = Vec::new();
    file.take(MAX_RESUME_FILE).read_to_end(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

fn probed(outcome: &str) {
    writeln!(std::io::stderr(), "probe {outcome}").ok();
}

fn safe() {
    std::io::stderr().write_all(&[SAFE]).ok();
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn what_hangs_on_the_disk_of_the_configuration_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        // Nobody writes to it, so whoever opens it waits, as for a disk that does not answer.
        let path = folder.path().join("hook.toml");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).unwrap();
        let slots = [folder.path().join("slots")];
        let (done, ends) = mpsc::channel();
        for _ in 0..=slots::MAX_CONCURRENT_CALLS {
            let (done, slots, path) = (done.clone(), slots.clone(), path.clone());
            // Those that wait end with the process.
            thread::spawn(move || done.send(begin(&slots, &path).map(drop)));
        }
        let ended = ends.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(ended.unwrap_err().contains("earlier calls hang"));
        assert!(ends.recv_timeout(Duration::from_millis(100)).is_err());
    }

    #[test]
    fn the_slot_is_one_of_the_configured_folder() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let path = at("hook.toml");
        let text = |more: &str| {
            format!(
                "cluster = 'c'\nspool = '/spool'\n{more}\n[nats]\nurl = 'nats://127.0.0.1:4222'\n"
            )
        };
        let named = format!("slots = {:?}", at("named"));
        let absent = format!("slots = {:?}", at("absent/named"));
        let count = |name: &str| fs::read_dir(at(name)).map_or(0, Iterator::count);
        for (keys, defaults, used) in [
            (named.as_str(), "first", Some("named")),
            (named.as_str(), "absent/first", Some("named")),
            (absent.as_str(), "second", Some("second")),
            ("", "third", Some("third")),
            ("", "absent/first", None),
        ] {
            fs::write(&path, text(keys)).unwrap();
            let (_, slot) = begin(&[at(defaults)], &path).unwrap();
            assert_eq!(slot.is_some(), used.is_some(), "{keys} {defaults}");
            if let Some(used) = used {
                assert!(count(used) > 0, "{keys} {defaults}");
            }
        }
    }
}
