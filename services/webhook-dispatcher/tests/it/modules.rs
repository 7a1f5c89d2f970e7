//! The arrows between the modules, as the README's table states them.

use std::path::{Path, PathBuf};

const README: &str = include_str!("../../README.md");

/// Every source file below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .flat_map(|path| match path.is_dir() {
            true => files(&path),
            false => vec![path],
        })
        .filter(|path| path.extension().is_some_and(|end| end == "rs"))
        .collect()
}

#[test]
fn each_module_imports_only_from_those_below_it() {
    let (_, table) = README.split_once("## Modules").unwrap();
    let name = |row: &'static str| Some(row.strip_prefix("| `")?.split_once("/`")?.0);
    let order: Vec<&str> = table.lines().filter_map(name).collect();
    assert!(order.len() > 5, "{order:?}");
    let position = |name: &str| order.iter().position(|one| *one == name);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut wrong = Vec::new();
    for path in files(&folder) {
        let file = path.strip_prefix(&folder).unwrap().to_str().unwrap();
        let module = file.split(['/', '.']).next().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let code = text.lines().filter(|line| !line.trim().starts_with("//"));
        for line in code {
            for used in line.split("crate::").skip(1) {
                let end = used.find(|c: char| !c.is_ascii_lowercase() && c != '_');
                let used = &used[..end.unwrap_or(used.len())];
                if let (Some(from), Some(to)) = (position(module), position(used))
                    && to < from
                {
                    wrong.push(format!("{file} imports {used}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
