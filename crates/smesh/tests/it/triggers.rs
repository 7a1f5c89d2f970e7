//! `smesh triggers`.

use std::fs;
use std::path::Path;
use std::process::Output;

use crate::mesh::{Mesh, stderr, stdout};
use crate::others::as_other;

#[test]
fn a_rule_of_somebody_else_needs_its_owner() {
    let mut mesh = Mesh::init();
    let path = mesh.path("mesh.toml");
    let text = fs::read_to_string(&path).unwrap();
    let rule = "[[workflow-trigger.rules]]\nname = \"manual\"\nowner = \"alice\"\non = { manual = true }\naction = { cancel = \"{{ data.job }}\" }\n";
    mesh_testkit::write_private(&path, format!("{text}\n{rule}"));
    mesh.start();
    let runs = |rule: &str| mesh.run(&["triggers", "runs", rule]);
    mesh.wait_until("runs are listed", || runs("alice/manual").status.success());
    for (rule, words) in [("manual", "alice/manual"), ("other", "USER/other")] {
        let output = runs(rule);
        assert!(!output.status.success(), "{rule}");
        assert!(stderr(&output).contains(words), "{output:?}");
    }
}

const RULES: &str = "[[rules]]\nname = \"plot\"\non = { types = [\"job.completed\"] }\naction = { submit = \"plot.sh\" }\n";
const REPORT: &str =
    "[[rules]]\nname = \"tell\"\non = { manual = true }\naction = { notify = \"hello\" }\n";

#[test]
fn rules_of_a_file_are_applied_by_their_owner() {
    let mut mesh = Mesh::init();
    let path = mesh.path("mesh.toml");
    let config = mesh.path("trigger-submitter.toml");
    fs::write(&config, "users = [\"nobody\"]\n").unwrap();
    let text = fs::read_to_string(&path).unwrap();
    let section = format!(
        "[workflow-trigger]\napi_rules = true\n[workflow-trigger.submitter]\nprogram_config = {config:?}\n"
    );
    mesh_testkit::write_private(&path, format!("{text}\n{section}"));
    mesh.start();
    let program = mesh.path("smesh");
    mesh_testkit::copy_program(Path::new(env!("CARGO_BIN_EXE_smesh")), &program);
    let socket = mesh.path("data/api.sock");
    let triggers = |args: &[&str]| {
        let args = [&["--socket", socket.to_str().unwrap(), "triggers"], args].concat();
        as_other(&program, &args)
    };
    let file = mesh.path("rules.toml");
    let apply = |options: &[&str]| {
        let args = [&["apply"], options, &[file.to_str().unwrap()]].concat();
        triggers(&args)
    };
    let done = |output: &Output| {
        assert!(output.status.success(), "{output:?}");
        stdout(output)
    };
    fs::write(mesh.path("plot.sh"), "#!/bin/sh\ntrue\n").unwrap();
    fs::write(&file, format!("{RULES}{REPORT}")).unwrap();
    mesh.wait_until("rules are listed", || triggers(&["list"]).status.success());
    assert_eq!(
        done(&apply(&["--dry-run"])),
        "created nobody/plot (dry run)\ncreated nobody/tell (dry run)\n"
    );
    assert!(done(&triggers(&["list"])).starts_with("no rules"));
    assert_eq!(
        done(&apply(&[])),
        "created nobody/plot\ncreated nobody/tell\n"
    );
    // A changed script is a changed rule.
    fs::write(mesh.path("plot.sh"), "#!/bin/sh\nfalse\n").unwrap();
    assert_eq!(
        done(&apply(&[])),
        "changed nobody/plot\nunchanged nobody/tell\n"
    );
    let shown = done(&triggers(&["show", "plot"]));
    for part in [
        "defined_in: api",
        "types: [\"job.completed\"]",
        "\n  false\n",
    ] {
        assert!(shown.contains(part), "{shown}");
    }
    let run = done(&triggers(&["fire", "tell"]));
    assert!(run.starts_with("run smesh:1:"), "{run}");

    // What the file lacks is deleted, if that is confirmed.
    fs::write(&file, RULES).unwrap();
    let asked = apply(&["--prune"]);
    assert!(!asked.status.success());
    assert!(stderr(&asked).contains("nobody/tell"), "{asked:?}");
    assert_eq!(
        done(&apply(&["--prune", "--yes"])),
        "unchanged nobody/plot\ndeleted nobody/tell\n"
    );
    // All is checked before anything changes, and each fault is named.
    let others = REPORT.replace("name", "owner = \"alice\"\nname");
    let faulty = "[[rules]]\nname = \"x\"\non = { manual = true }\naction = { cancle = 7 }\n";
    fs::write(&file, format!("{REPORT}{others}{faulty}")).unwrap();
    let refused = apply(&[]);
    assert_eq!(refused.status.code(), Some(77), "{refused:?}");
    let words = stderr(&refused);
    for part in [
        "rule alice/tell: only alice and administrators",
        "rule nobody/x: action.cancle: unknown key",
        "nothing was changed",
    ] {
        assert!(words.contains(part), "{words}");
    }
    let list = done(&triggers(&["list"]));
    assert!(
        list.contains("nobody/plot") && !list.contains("tell"),
        "{list}"
    );
    assert_eq!(
        done(&triggers(&["delete", "plot"])),
        "deleted nobody/plot\n"
    );
    assert!(!triggers(&["delete", "nobody/plot"]).status.success());
    // An administrator makes rules for the users of trigger-submitter.toml only.
    let of = |owner: &str| REPORT.replace("name", &format!("owner = \"{owner}\"\nname"));
    for (owner, may) in [("nobody", true), ("daemon", false)] {
        fs::write(&file, of(owner)).unwrap();
        let output = mesh.run(&["triggers", "apply", "rules.toml"]);
        assert_eq!(output.status.success(), may, "{output:?}");
    }
}
