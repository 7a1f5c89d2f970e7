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
            Category::User => &["ingest", "cost-engine", "workflow-trigger"],
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

    /// The text literals of Rust code, one a line.
    fn literals(code: &str) -> String {
        let mut found = String::new();
        let mut rest = code;
        while let Some(at) = rest.find(['"', '\'', '/']) {
            let (before, from) = rest.split_at(at);
            let hashes = before.len() - before.trim_end_matches('#').len();
            let is_raw = before[..before.len() - hashes].ends_with('r');
            rest = &from[1..];
            if from.starts_with("//") {
                rest = from.split_once('\n').map_or("", |(_, next)| next);
            } else if from.starts_with("'\"'") || from.starts_with("'\\\"'") {
                rest = &rest[rest.find("\"'").map_or(0, |end| end + 2)..];
            } else if from.starts_with('"') {
                let end = match is_raw {
                    true => rest.find(&format!("\"{}", "#".repeat(hashes))),
                    false => unescaped_quote(rest),
                };
                let (literal, next) = rest.split_at(end.unwrap_or(rest.len()));
                found.push_str(literal);
                found.push('\n');
                rest = next.strip_prefix('"').unwrap_or_default();
            }
        }
        found
    }

    fn unescaped_quote(text: &str) -> Option<usize> {
        let mut is_escaped = false;
        text.char_indices().find_map(|(at, c)| {
            let ends = c == '"' && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            ends.then_some(at)
        })
    }

    /// True if tests name the whole type: in a literal, as `node.up`, or as `EventType::NodeUp`. A word of it is none: `up` is also a state.
    fn is_tested(kind: EventType, tests: &str) -> bool {
        contains_token(&literals(tests), &kind.to_string())
            || contains_token(tests, &format!("EventType::{kind:?}"))
    }

    #[test]
    fn a_test_names_the_whole_type() {
        let code =
            r####"fn held() { assert(r#"a "raw" one"#, '"', "it\'s \"x\"", 'a'); } // "failed""####;
        assert_eq!(literals(code), "a \"raw\" one\nit\\'s \\\"x\\\"\n");
        let kind = EventType::NodeDown;
        for (tests, expected) in [
            (r#"assert_eq!(kind, "node.down");"#, true),
            (r#"assert_eq!(found, ["n1 node.down admin"]);"#, true),
            ("assert_eq!(kind, EventType::NodeDown);", true),
            (r#"assert_eq!(found, ["down admin"]);"#, false),
            (r#"record("DOWN"); node.down(); // "node.down""#, false),
            (r#"assert_eq!(kind, "node.down_again");"#, false),
            ("assert_eq!(kind, EventType::NodeDownAgain);", false),
        ] {
            assert_eq!(is_tested(kind, tests), expected, "{tests}");
        }
    }

    #[test]
    fn every_event_type_has_a_producer_and_a_test() {
        let services = Path::new(env!("CARGO_MANIFEST_DIR")).join("../services");
        let mut faults = Vec::new();
        for kind in EventType::ALL.iter().copied() {
            let (mut code, mut tests) = (String::new(), String::new());
            for service in producers(kind.category()) {
                sources(&services.join(service), &mut code, &mut tests);
            }
            let is_made = contains_token(&code, &format!("EventType::{kind:?}"));
            if !is_made {
                faults.push(format!("{kind}: no service makes it; remove it"));
            }
            if !is_tested(kind, &tests) {
                faults.push(format!(
                    "{kind}: no test of its service names the whole type"
                ));
            }
        }
        assert!(faults.is_empty(), "{faults:#?}");
    }
}
