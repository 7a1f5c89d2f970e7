//! Plans the lines and scripts from the current settings. Pure.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::kinds::{HookHosts, HookInstallation, HookKind, KINDS};
use super::shell::quoted;
use crate::slurm_conf::SlurmConf;

/// Marks a script written by this program.
pub const MARK: &str = "# Written by `smesh hooks`.";

/// File of the PAM hook. Other PAM services take the same line.
pub const PAM_FILE: &str = "/etc/pam.d/sshd";

/// A hook and how it is installed.
#[derive(Debug, PartialEq, Eq)]
pub struct Hook {
    /// Name, as in slurm.conf and in the doorbell.
    pub name: &'static str,
    /// Where it runs.
    pub hosts: HookHosts,
    /// What the hook reports.
    pub about: &'static str,
    /// One of the three hooks that together report everything.
    pub recommended: bool,
    /// File to write the lines into, or the command to run.
    pub into: String,
    /// The lines.
    pub lines: Vec<String>,
    /// Path of the script that the lines name.
    pub script: PathBuf,
    /// Text of the script.
    pub text: String,
    /// The installed file, if it is ours: our script, or the file that loads our module.
    pub installed: Option<PathBuf>,
}

/// Steps for installing the hooks.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct InstallPlan {
    /// The hooks.
    pub hooks: Vec<Hook>,
    /// Notes for the operator.
    pub notes: Vec<String>,
    /// Hosts of slurmctld.
    pub controllers: Vec<String>,
}

impl InstallPlan {
    /// The lines for slurm.conf of the recommended hooks.
    pub fn lines(&self) -> String {
        self.hooks
            .iter()
            .filter(|hook| hook.recommended)
            .flat_map(|hook| hook.lines.iter().map(String::as_str))
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// The plan as JSON.
    pub fn to_json(&self) -> Value {
        let hooks: Vec<Value> = self
            .hooks
            .iter()
            .map(|hook| {
                json!({
                    "hook": hook.name, "on": hook.hosts.name(), "about": hook.about, "recommended": hook.recommended,
                    "into": hook.into, "lines": hook.lines, "script": hook.script, "text": hook.text,
                    "configured": hook.installed.is_some(),
                })
            })
            .collect();
        json!({ "hooks": hooks, "notes": self.notes, "controllers": self.controllers })
    }
}

/// Inputs of a plan.
pub struct PlanInputs<'a> {
    /// Current settings.
    pub conf: &'a SlurmConf,
    /// The mesh-hook program.
    pub program: &'a Path,
    /// Its configuration.
    pub config: &'a Path,
    /// Folder of the scripts.
    pub dir: &'a Path,
    /// Folder of the lines of Lua plugins.
    pub lines: &'a Path,
    /// Output of `strigger --get`.
    pub triggers: &'a str,
    /// Reads the text of a file, if it exists. Of a program, the first bytes.
    pub read: &'a dyn Fn(&Path) -> Option<String>,
}

impl PlanInputs<'_> {
    /// Plans every hook.
    pub fn plan(&self) -> InstallPlan {
        let mut plan = InstallPlan {
            controllers: self.conf.controllers(),
            ..InstallPlan::default()
        };
        for kind in KINDS {
            match kind.installation {
                HookInstallation::Parameter | HookInstallation::SitesOwn => {
                    self.parameter(kind, &mut plan)
                }
                HookInstallation::JobComp => self.jobcomp(kind, &mut plan),
                HookInstallation::Trigger(option) => self.trigger(kind, option, &mut plan),
                HookInstallation::Pam => self.pam(kind, &mut plan),
                HookInstallation::Lua(parameter, file) => {
                    self.lua(kind, parameter, file, &mut plan)
                }
            }
        }
        plan
    }

    fn hook(&self, kind: &HookKind, chain: Option<&str>) -> Hook {
        Hook {
            name: kind.name,
            hosts: kind.hosts,
            about: kind.about,
            recommended: kind.recommended,
            into: self.conf.path.display().to_string(),
            lines: Vec::new(),
            script: self.dir.join(kind.file),
            text: self.script(kind.name, chain),
            installed: None,
        }
    }

    fn parameter(&self, kind: &HookKind, plan: &mut InstallPlan) {
        let now = self.conf.get(kind.name).unwrap_or_default();
        let set = match kind.name {
            // slurm.conf(5): this program handles nodes that ResumeProgram did not bring up.
            "ResumeFailProgram" => self.conf.get("ResumeProgram").is_some(),
            // MailProg has a default in Slurm, even if that program is not installed.
            "MailProg" => (self.read)(Path::new(now)).is_some(),
            _ => kind.installation == HookInstallation::Parameter || !now.is_empty(),
        };
        if !set {
            plan.notes.push(format!(
                "{} is not configured on this cluster, so there is nothing to add to",
                kind.name
            ));
            return;
        }
        // Prolog and Epilog may be patterns (slurm.conf(5), 22.05), and newer versions accept several programs. One script can replace
        // only one program.
        if now.contains([',', '*', '?', '[']) {
            let mut hook = self.hook(kind, None);
            hook.installed = now.split(',').find_map(|one| self.site_program(one).1);
            plan.notes.push(format!(
                "{}={now} has several programs: add {} instead of replacing them",
                kind.name,
                hook.script.display()
            ));
            plan.hooks.push(hook);
            return;
        }
        let (chain, installed) = self.site_program(now);
        let mut hook = self.hook(kind, chain.as_deref());
        hook.lines
            .push(format!("{}={}", kind.name, hook.script.display()));
        if matches!(kind.name, "Prolog" | "Epilog") && !self.prolog_at_allocation() {
            plan.notes.push(format!(
                "{}: without PrologFlags=Alloc it runs at a job's first step on a node",
                kind.name
            ));
        }
        hook.installed = installed;
        plan.hooks.push(hook);
    }

    fn prolog_at_allocation(&self) -> bool {
        let flags = self.conf.get("PrologFlags").unwrap_or_default();
        flags
            .to_lowercase()
            .split(',')
            .any(|flag| ["alloc", "contain", "x11", "serial"].contains(&flag))
    }

    fn jobcomp(&self, kind: &HookKind, plan: &mut InstallPlan) {
        let plugin = self.conf.get("JobCompType").unwrap_or("jobcomp/none");
        let now = match plugin.to_lowercase().as_str() {
            "jobcomp/none" => "",
            "jobcomp/script" => self.conf.get("JobCompLoc").unwrap_or_default(),
            // slurm.conf(5), 22.05: JobCompType accepts one plugin.
            _ => {
                plan.notes.push(format!(
                    "JobCompType={plugin} is unchanged, as Slurm allows only one plugin. Final states come from EpilogSlurmctld's doorbell and the poll"
                ));
                return;
            }
        };
        let (chain, installed) = self.site_program(now);
        let mut hook = self.hook(kind, chain.as_deref());
        hook.lines = vec![
            "JobCompType=jobcomp/script".into(),
            format!("JobCompLoc={}", hook.script.display()),
        ];
        hook.installed = installed;
        plan.hooks.push(hook);
    }

    fn trigger(&self, kind: &HookKind, option: &str, plan: &mut InstallPlan) {
        let mut hook = self.hook(kind, None);
        let script = hook.script.display().to_string();
        hook.into = format!("run once as {}", self.conf.slurm_user());
        // strigger(1): PERM keeps the trigger after it has fired.
        hook.lines.push(format!(
            "strigger --set --node {option} --flags=PERM --program={}",
            quoted(&script)
        ));
        let set = self
            .triggers
            .lines()
            .any(|line| line.split_whitespace().any(|token| token == script));
        hook.installed = set.then(|| hook.script.clone());
        plan.hooks.push(hook);
    }

    fn pam(&self, kind: &HookKind, plan: &mut InstallPlan) {
        let mut hook = self.hook(kind, None);
        let script = hook.script.display().to_string();
        hook.into = PAM_FILE.into();
        // pam_exec(8): "quiet", because its output would be shown to the user who logs in.
        hook.lines.push(format!(
            "session optional pam_exec.so quiet type=open_session {script}"
        ));
        let set = (self.read)(Path::new(PAM_FILE)).is_some_and(|text| {
            text.lines()
                .any(|line| !line.trim_start().starts_with('#') && line.contains(&script))
        });
        hook.installed = set.then(|| hook.script.clone());
        plan.hooks.push(hook);
    }

    fn lua(&self, kind: &HookKind, parameter: &str, file: &str, plan: &mut InstallPlan) {
        let beside = self.conf.path.with_file_name(file);
        let now = self.conf.get(parameter).unwrap_or_default();
        // Slurm accepts both `job_submit/lua` and `lua`.
        let plugin_on = now
            .split(',')
            .any(|name| name.rsplit('/').next() == Some("lua"));
        let mut hook = self.hook(kind, None);
        let theirs = (self.read)(&beside);
        let loads = theirs.as_ref().is_some_and(|text| text.contains(kind.file));
        hook.installed = (plugin_on && loads).then(|| beside.clone());
        if !plugin_on {
            let plugins = [now, "lua"].into_iter().filter(|name| !name.is_empty());
            let plugins: Vec<&str> = plugins.collect();
            hook.lines
                .push(format!("{parameter}={}", plugins.join(",")));
        }
        if theirs.is_some() && !loads {
            let load = mesh_hook::lua::load(self.dir);
            plan.notes.push(format!(
                "{}: add `{load}` and the calls of `mesh.` that {} shows",
                beside.display(),
                self.dir.join(file).display()
            ));
        } else if !loads {
            plan.notes.push(format!(
                "{}: copy {} there, on {}",
                beside.display(),
                self.dir.join(file).display(),
                kind.hosts.name()
            ));
        }
        if kind.name == "CliFilter" {
            plan.notes.push(format!(
                "users' lines need a separate small tmpfs; on {}, in /etc/fstab: {}",
                kind.hosts.name(),
                self.users_mount()
            ));
        }
        let module = mesh_hook::lua::FILES.first();
        hook.text = module.map_or_else(String::new, |file| file.text(self.dir, self.lines));
        plan.hooks.push(hook);
    }

    /// The line for /etc/fstab. Its size limits what users can fill. `nr_inodes` leaves room for the files that replace the lines'
    /// files.
    fn users_mount(&self) -> String {
        let users = self.lines.join(mesh_hook::lines::USERS);
        // fstab(5): blanks are written in octal.
        let users = users.to_string_lossy().replace(' ', "\\040");
        let slurm_user = self.conf.slurm_user();
        format!(
            "tmpfs {users} tmpfs size=4m,nr_inodes=64,mode=0711,uid={slurm_user},nodev,nosuid,noexec,x-mount.mkdir 0 0"
        )
    }

    /// The site's own program, quoted for the shell, if there is one. And the current program, if it is ours.
    fn site_program(&self, now: &str) -> (Option<String>, Option<PathBuf>) {
        let path = Path::new(now);
        if now.is_empty() {
            return (None, None);
        }
        if path == self.program || path.file_name() == Some("mesh-hook".as_ref()) {
            return (None, Some(path.to_owned()));
        }
        // Our script may be rewritten, here or under another path. The program it chains to must be neither lost nor chained twice.
        match (self.read)(path).filter(|text| text.contains(MARK)) {
            Some(text) => (
                text.split_once(" --chain ")
                    .and_then(|(_, rest)| Some(rest.split_once(" \"$@\"")?.0.to_owned())),
                Some(path.to_owned()),
            ),
            None => (Some(quoted(now)), None),
        }
    }

    fn script(&self, hook: &str, chain: Option<&str>) -> String {
        let (program, config) = (
            quoted(&self.program.to_string_lossy()),
            quoted(&self.config.to_string_lossy()),
        );
        let (why, last) = match chain {
            Some(site) => (
                format!("Sends a doorbell in parallel and runs {site} (exec)."),
                format!("--chain {site} \"$@\""),
            ),
            None => (
                "Sends a doorbell and exits with status 0.".to_owned(),
                "-- \"$@\"".to_owned(),
            ),
        };
        format!("#!/bin/sh\n{MARK} {why}\nexec {program} --config {config} --hook {hook} {last}\n")
    }
}

#[cfg(test)]
mod tests;
