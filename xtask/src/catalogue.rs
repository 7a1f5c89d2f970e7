//! Checks that every event type of the catalogue has a producer and a test.

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use mesh_events::{Category, EventType};

    /// The services that publish events of a category.
    const fn producers(category: Category) -> &'static [&'static str] {
        match category {
            Category::Job => &["ingest"],
            Category::User => &["ingest", "cost-engine"],
            Category::Capture => &["ingest", "ledger"],
            Category::Node => &["node-watcher"],
            Category::Cost => &["cost-engine"],
            Category::Queue => &["pending-explainer"],
        }
    }

    /// Collects the sources below a folder: program code and tests.
    fn sources(folder: &Path, code: &mut String, tests: &mut String) {
        let mut entries: Vec<PathBuf> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        entries.sort();
        for path in entries {
            if path.is_dir() {
                sources(&path, code, tests);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                // Comments are neither code nor tests.
                let is_code = |line: &&str| !line.trim_start().starts_with("//");
                let text: Vec<&str> = text.lines().filter(is_code).collect();
                let text = text.join("\n");
                let is_test = path.components().any(|part| {
                    let part = part.as_os_str().to_string_lossy();
                    part == "tests" || part.ends_with("tests.rs")
                });
                let (program, of_tests) = match text.find("#[cfg(test)]\nmod tests {") {
                    _ if is_test => ("", text.as_str()),
                    Some(at) => text.split_at(at),
                    None => (text.as_str(), ""),
                };
                code.push_str(program);
                tests.push_str(of_tests);
            }
        }
    }

    /// True if the text contains the word, and not only as part of another one.
    fn contains_token(text: &str, token: &str) -> bool {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        text.match_indices(token).any(|(at, _)| {
            !text[..at].ends_with(is_part) && !text[at + token.len()..].starts_with(is_part)
        })
    }

    /// What is in string literals.
    fn quoted(code: &str) -> String {
        let code = code
            .replace("'\"'", "")
            .replace("\\\\", "")
            .replace("\\\"", "");
        let literals: Vec<&str> = code.split('"').skip(1).step_by(2).collect();
        literals.join("\n")
    }

    #[test]
    fn every_event_type_has_a_producer_and_a_test() {
        let services = Path::new(env!("CARGO_MANIFEST_DIR")).join("../services");
        let table = services.join("../docs/reference/job-events.md");
        let table = fs::read_to_string(table).unwrap();
        let mut faults = Vec::new();
        for kind in EventType::ALL.iter().copied() {
            let (mut code, mut tests) = (String::new(), String::new());
            for service in producers(kind.category()) {
                sources(&services.join(service), &mut code, &mut tests);
            }
            let is_made = contains_token(&code, &format!("EventType::{kind:?}"));
            // The table of job events is a test, too: each row runs through the code. Lives of nodes and users are tested as words.
            let is_documented = match kind.category() {
                Category::Job => contains_token(&table, kind.event()),
                Category::Node | Category::User => contains_token(&quoted(&tests), kind.event()),
                Category::Cost | Category::Queue | Category::Capture => false,
            };
            let is_tested = contains_token(&tests, &kind.to_string())
                || contains_token(&tests, &format!("EventType::{kind:?}"))
                || is_documented;
            if !is_made {
                faults.push(format!("{kind}: no service makes it; remove it"));
            }
            if !is_tested {
                faults.push(format!("{kind}: no test of its service names it"));
            }
        }
        assert!(faults.is_empty(), "{faults:#?}");
    }
}
