//! One convention for the files of modules.
//!
//! - The module `name` is in `name.rs`, its submodules in the folder `name/`: no `mod.rs`.
//! - The unit tests of `name.rs` are its module `tests`: inside it, or in `name/tests.rs`.

use std::path::Path;

use anyhow::{Result, ensure};

/// Fails with every file that does not follow the convention.
pub fn check(root: &Path) -> Result<()> {
    let mut wrong = Vec::new();
    for file in crate::links::files(root)? {
        if file.ends_with(".rs") && !file.contains("/generated/") {
            wrong.extend(problem(&file).map(|problem| format!("{file}: {problem}")));
        }
    }
    ensure!(
        wrong.is_empty(),
        "files of modules under other names:\n{}",
        wrong.join("\n")
    );
    Ok(())
}

fn problem(file: &str) -> Option<String> {
    let (folder, name) = file.rsplit_once('/')?;
    if name == "mod.rs" {
        return Some(format!("call it {folder}.rs"));
    }
    let tested = name.strip_suffix("_tests.rs")?;
    Some(format!("call it {folder}/{tested}/tests.rs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_names_are_answered_with_the_right_one() {
        for (file, right) in [
            ("src/lib.rs", None),
            ("src/api.rs", None),
            ("src/api/tests.rs", None),
            ("src/api/mod.rs", Some("call it src/api.rs")),
            ("src/api_tests.rs", Some("call it src/api/tests.rs")),
        ] {
            assert_eq!(problem(file).as_deref(), right, "{file}");
        }
    }
}
