use std::collections::BTreeMap;

use super::*;

fn check(set: &[(&str, &str)], read: &dyn Fn(&Path) -> Option<String>) -> InstallPlan {
    let printed: BTreeMap<String, String> = set
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    let conf = SlurmConf::from_controller(Path::new("/etc/slurm/slurm.conf"), &printed);
    PlanInputs {
        conf: &conf,
        program: Path::new("/usr/bin/mesh-hook"),
        config: Path::new("/srv/mesh data/hook.toml"),
        dir: Path::new("/etc/slurm-mesh/hooks"),
        lines: Path::new("/run/lines"),
        triggers: "TRIG_ID RES_TYPE RES_ID TYPE OFFSET USER FLAGS PROGRAM\n1 node * down 0 slurm PERM /etc/slurm-mesh/hooks/strigger-down\n",
        read,
    }
    .plan()
}

fn hook<'a>(plan: &'a InstallPlan, name: &str) -> &'a Hook {
    plan.hooks.iter().find(|hook| hook.name == name).unwrap()
}

#[test]
fn an_empty_slurm_conf_gets_all_three() {
    let plan = check(&[], &|_| None);
    assert_eq!(
        plan.lines(),
        "PrologSlurmctld=/etc/slurm-mesh/hooks/prolog-slurmctld\n\
         EpilogSlurmctld=/etc/slurm-mesh/hooks/epilog-slurmctld\n\
         JobCompType=jobcomp/script\nJobCompLoc=/etc/slurm-mesh/hooks/jobcomp"
    );
    assert!(plan.hooks[0].text.ends_with("exec /usr/bin/mesh-hook --config '/srv/mesh data/hook.toml' --hook PrologSlurmctld -- \"$@\"\n"));
    assert!(
        plan.hooks
            .iter()
            .all(|hook| hook.installed.is_none() || hook.name == "strigger-down")
    );
}

#[test]
fn the_sites_own_programs_are_preserved() {
    let set = [
        ("PrologSlurmctld", "/etc/slurm/it's mine.sh"),
        ("JobCompType", "jobcomp/script"),
        ("JobCompLoc", "/site/done"),
        ("Prolog", "/site/prolog"),
        ("ResumeProgram", "/site/resume"),
        ("SuspendProgram", "/site/suspend"),
        ("HealthCheckProgram", "/usr/sbin/nhc"),
        ("MailProg", "/bin/mail"),
    ];
    let plan = check(&set, &|path| {
        (path == Path::new("/bin/mail")).then(String::new)
    });
    for (name, program) in [
        ("PrologSlurmctld", r"'/etc/slurm/it'\''s mine.sh'"),
        ("JobComp", "/site/done"),
        ("Prolog", "/site/prolog"),
        ("ResumeProgram", "/site/resume"),
        ("SuspendProgram", "/site/suspend"),
        ("HealthCheckProgram", "/usr/sbin/nhc"),
        ("MailProg", "/bin/mail"),
    ] {
        let text = &hook(&plan, name).text;
        assert!(
            text.contains(&format!("--hook {name} --chain {program} \"$@\"")),
            "{text}"
        );
    }
    // Power saving is in use, so its failures are worth reporting.
    assert!(hook(&plan, "ResumeFailProgram").text.contains("-- \"$@\""));
}

#[test]
fn unused_features_are_not_planned() {
    let plan = check(&[("MailProg", "/bin/mail")], &|_| None);
    for name in [
        "MailProg",
        "ResumeProgram",
        "SuspendProgram",
        "ResumeFailProgram",
        "HealthCheckProgram",
    ] {
        assert!(plan.hooks.iter().all(|hook| hook.name != name), "{name}");
        assert!(
            plan.notes.iter().any(|note| note.starts_with(name)),
            "{name}"
        );
    }
}

#[test]
fn planning_again_chains_to_the_same_program_and_not_to_itself() {
    let first = check(&[("PrologSlurmctld", "/site/prolog")], &|_| None);
    let text = first.hooks[0].text.clone();
    let second = check(
        &[("PrologSlurmctld", "/etc/slurm-mesh/hooks/prolog-slurmctld")],
        &|_| Some(text.clone()),
    );
    assert_eq!(second.hooks[0].text, first.hooks[0].text);
    assert!(second.hooks[0].installed.is_some());
}

#[test]
fn another_jobcomp_plugin_is_not_replaced() {
    let plan = check(
        &[
            ("JobCompType", "jobcomp/elasticsearch"),
            ("JobCompLoc", "http://x"),
        ],
        &|_| None,
    );
    assert!(plan.hooks.iter().all(|hook| hook.name != "JobComp"));
    assert!(
        plan.notes
            .iter()
            .any(|note| note.contains("jobcomp/elasticsearch"))
    );
}

#[test]
fn several_programs_are_not_replaced_silently() {
    let plan = check(&[("Epilog", "/etc/slurm/epilog.d/*")], &|_| None);
    assert!(hook(&plan, "Epilog").lines.is_empty());
    assert!(plan.notes.iter().any(|note| note.contains("several")));
}

#[test]
fn lua_plugins_are_added_to_those_that_are_there() {
    let plan = check(&[("JobSubmitPlugins", "all_partitions")], &|_| None);
    assert_eq!(
        hook(&plan, "JobSubmit").lines,
        ["JobSubmitPlugins=all_partitions,lua"]
    );
    assert!(hook(&plan, "JobSubmit").text.contains("\"/run/lines\""));
    let own = check(&[("JobSubmitPlugins", "job_submit/lua")], &|path| {
        path.ends_with("job_submit.lua")
            .then(|| "function slurm_job_submit".to_owned())
    });
    assert!(hook(&own, "JobSubmit").lines.is_empty());
    assert!(own.notes.iter().any(|note| note.contains("pcall(dofile")));
    let ours = check(&[("JobSubmitPlugins", "lua")], &|path| {
        path.ends_with("job_submit.lua")
            .then(|| "dofile \"/etc/slurm-mesh/hooks/mesh.lua\"".to_owned())
    });
    assert!(hook(&ours, "JobSubmit").installed.is_some());
}

#[test]
fn logins_and_triggers_are_recognised_where_they_are_set() {
    let line = "session optional pam_exec.so quiet type=open_session /etc/slurm-mesh/hooks/pam";
    for (text, installed) in [
        (line.to_owned(), true),
        (format!("# {line}"), false),
        (String::new(), false),
    ] {
        let plan = check(&[], &|path| {
            (path == Path::new(PAM_FILE)).then(|| text.clone())
        });
        assert_eq!(hook(&plan, "Pam").installed.is_some(), installed, "{text}");
        assert_eq!(hook(&plan, "Pam").lines, [line]);
    }
    let plan = check(&[("SlurmUser", "slurm(64030)")], &|_| None);
    assert!(hook(&plan, "strigger-down").installed.is_some());
    assert!(hook(&plan, "strigger-up").installed.is_none());
    assert_eq!(hook(&plan, "strigger-up").into, "run once as slurm");
}

#[test]
fn both_controllers_are_named() {
    let plan = check(
        &[
            ("SlurmctldHost[0]", "ctl1(10.0.0.1)"),
            ("SlurmctldHost[1]", "ctl2"),
        ],
        &|_| None,
    );
    assert_eq!(plan.controllers, ["ctl1", "ctl2"]);
}
