//! `smesh triggers`.

use std::fs;

use crate::mesh::{Mesh, stderr};

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
