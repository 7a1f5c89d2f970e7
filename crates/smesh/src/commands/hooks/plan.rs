//! Which lines and scripts: pure, from what is set now.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::slurm_conf::SlurmConf;

/// How a script of ours is recognised.
const MARK: &str = "# Written by `smesh hooks`.";

/// A hook and its script.
#[derive(Debug, PartialEq, Eq)]
pub struct Hook {
    /// Name, as in slurm.conf and on the doorbell.
    pub name: &'static str,
    /// Lines for slurm.conf.
    pub lines: Vec<String>,
    /// The script they name.
    pub script: PathBuf,
    /// Its text.
    pub text: String,
    /// True if slurm.conf says so already.
    pub configured: bool,
}

/// What to do.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The hooks.
    pub hooks: Vec<Hook>,
    /// What a person should know.
    pub notes: Vec<String>,
}

impl Plan {
    /// The lines for slurm.conf.
    pub fn lines(&self) -> String {
        self.hooks
            .iter()
            .flat_map(|hook| hook.lines.iter().map(String::as_str))
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// For machines.
    pub fn to_json(&self) -> Value {
        let hooks: Vec<Value> = self
            .hooks
            .iter()
            .map(|hook| json!({ "hook": hook.name, "lines": hook.lines, "script": hook.script, "text": hook.text, "configured": hook.configured }))
            .collect();
        json!({ "hooks": hooks, "notes": self.notes })
    }
}

/// Plans the three hooks that tell everything. `read` gives the text of a program that is set now, if it has one.
pub fn plan(
    conf: &SlurmConf,
    program: &Path,
    config: &Path,
    dir: &Path,
    read: impl Fn(&Path) -> Option<String>,
) -> Plan {
    let mut plan = Plan::default();
    let files = Files { program, config };
    for (name, file) in [
        ("PrologSlurmctld", "prolog-slurmctld"),
        ("EpilogSlurmctld", "epilog-slurmctld"),
    ] {
        let script = dir.join(file);
        let now = conf.get(name).unwrap_or_default();
        // Newer versions of Slurm take several programs or a pattern there; one script can stand in for one program only.
        if now.contains([',', '*', '?', '[']) {
            plan.notes.push(format!(
                "{name}={now} names several programs: add {} to them instead of replacing them",
                script.display()
            ));
        }
        let (chain, configured) = site_program(now, program, &read);
        plan.hooks.push(Hook {
            name,
            lines: vec![format!("{name}={}", script.display())],
            text: files.script(name, chain.as_deref()),
            configured,
            script,
        });
    }
    let kind = conf
        .get("JobCompType")
        .unwrap_or("jobcomp/none")
        .to_lowercase();
    let script = dir.join("jobcomp");
    match kind.as_str() {
        "jobcomp/none" | "jobcomp/script" => {
            let now = if kind == "jobcomp/script" { conf.get("JobCompLoc").unwrap_or_default() } else { "" };
            let (chain, configured) = site_program(now, program, &read);
            plan.hooks.push(Hook {
                name: "JobComp",
                lines: vec!["JobCompType=jobcomp/script".into(), format!("JobCompLoc={}", script.display())],
                text: files.script("JobComp", chain.as_deref()),
                configured,
                script,
            });
        }
        // slurm.conf(5), 22.05: JobCompType takes one plugin.
        other => plan.notes.push(format!(
            "JobCompType={other} stays: Slurm takes one plugin there. Final states then come from EpilogSlurmctld's doorbell and the sweep"
        )),
    }
    plan
}

/// The site's own program as a word of the shell, if there is one, and whether our hook is what is set now.
fn site_program(
    now: &str,
    program: &Path,
    read: &impl Fn(&Path) -> Option<String>,
) -> (Option<String>, bool) {
    let path = Path::new(now);
    if now.is_empty() {
        return (None, false);
    }
    if path == program || path.file_name() == Some("mesh-hook".as_ref()) {
        return (None, true);
    }
    // A script of ours may be written anew, here or elsewhere: what it chains to must not be lost, nor chained to twice.
    match read(path).filter(|text| text.contains(MARK)) {
        Some(text) => (
            text.split_once(" --chain ")
                .and_then(|(_, rest)| Some(rest.split_once(" \"$@\"")?.0.to_owned())),
            true,
        ),
        None => (Some(quoted(now)), false),
    }
}

struct Files<'a> {
    program: &'a Path,
    config: &'a Path,
}

impl Files<'_> {
    fn script(&self, hook: &str, chain: Option<&str>) -> String {
        let (program, config) = (
            quoted(&self.program.to_string_lossy()),
            quoted(&self.config.to_string_lossy()),
        );
        let (why, last) = match chain {
            Some(site) => (
                format!("Rings beside {site}, which it becomes."),
                format!("--chain {site} \"$@\""),
            ),
            None => (
                "Rings, and ends with status 0.".to_owned(),
                "-- \"$@\"".to_owned(),
            ),
        };
        format!("#!/bin/sh\n{MARK} {why}\nexec {program} --config {config} --hook {hook} {last}\n")
    }
}

/// A word of the shell.
fn quoted(text: &str) -> String {
    let plain = text
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"/._-+".contains(&byte));
    if plain && !text.is_empty() {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn check(set: &[(&str, &str)], read: impl Fn(&Path) -> Option<String>) -> Plan {
        let printed: BTreeMap<String, String> = set
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let conf = SlurmConf::from_controller(Path::new("/etc/slurm/slurm.conf"), &printed);
        plan(
            &conf,
            Path::new("/usr/bin/mesh-hook"),
            Path::new("/srv/mesh data/hook.toml"),
            Path::new("/etc/slurm-mesh/hooks"),
            read,
        )
    }

    #[test]
    fn an_empty_slurm_conf_gets_all_three() {
        let plan = check(&[], |_| None);
        assert_eq!(
            plan.lines(),
            "PrologSlurmctld=/etc/slurm-mesh/hooks/prolog-slurmctld\n\
             EpilogSlurmctld=/etc/slurm-mesh/hooks/epilog-slurmctld\n\
             JobCompType=jobcomp/script\nJobCompLoc=/etc/slurm-mesh/hooks/jobcomp"
        );
        assert!(plan.hooks[0].text.ends_with("exec /usr/bin/mesh-hook --config '/srv/mesh data/hook.toml' --hook PrologSlurmctld -- \"$@\"\n"));
        assert!(plan.notes.is_empty() && plan.hooks.iter().all(|hook| !hook.configured));
    }

    #[test]
    fn the_sites_own_programs_are_kept() {
        let plan = check(
            &[
                ("PrologSlurmctld", "/etc/slurm/it's mine.sh"),
                ("JobCompType", "jobcomp/script"),
                ("JobCompLoc", "/site/done"),
            ],
            |_| None,
        );
        assert!(
            plan.hooks[0]
                .text
                .contains(r#"--chain '/etc/slurm/it'\''s mine.sh' "$@""#),
            "{}",
            plan.hooks[0].text
        );
        assert!(plan.hooks[2].text.contains("--chain /site/done \"$@\""));
    }

    #[test]
    fn planning_again_chains_to_the_same_program_and_not_to_itself() {
        let first = check(&[("PrologSlurmctld", "/site/prolog")], |_| None);
        let text = first.hooks[0].text.clone();
        let again = check(
            &[("PrologSlurmctld", "/etc/slurm-mesh/hooks/prolog-slurmctld")],
            |_| Some(text.clone()),
        );
        assert_eq!(again.hooks[0].text, first.hooks[0].text);
        assert!(again.hooks[0].configured);
    }

    #[test]
    fn another_jobcomp_plugin_stays() {
        let plan = check(
            &[
                ("JobCompType", "jobcomp/elasticsearch"),
                ("JobCompLoc", "http://x"),
            ],
            |_| None,
        );
        assert_eq!(plan.hooks.len(), 2);
        assert!(plan.notes[0].contains("jobcomp/elasticsearch"));
    }

    #[test]
    fn several_programs_are_not_replaced_silently() {
        assert!(
            check(&[("EpilogSlurmctld", "/etc/slurm/epilog.d/*")], |_| None).notes[0]
                .contains("several")
        );
    }
}
