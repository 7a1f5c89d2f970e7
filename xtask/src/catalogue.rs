//! Checks that every event type of the catalogue has a producer and a test: the files that `producers.tsv` names.

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;
    use std::{fs, io};

    use mesh_events::EventType;

    const TABLE: &str = include_str!("../producers.tsv");

    /// A file's program code and its tests, without comments, which are neither.
    fn code_and_tests(path: &Path) -> io::Result<(String, String)> {
        let text = fs::read_to_string(path)?;
        let is_code = |line: &&str| !line.trim_start().starts_with("//");
        let text: Vec<&str> = text.lines().filter(is_code).collect();
        let text = text.join("\n");
        let is_test = path.components().any(|part| {
            let part = part.as_os_str().to_string_lossy();
            part == "tests" || part.ends_with("tests.rs")
        });
        Ok(match text.find("#[cfg(test)]\nmod tests {") {
            _ if is_test => (String::new(), text),
            Some(at) => (text[..at].to_owned(), text[at..].to_owned()),
            None => (text, String::new()),
        })
    }

    /// Where the text has the word, and not only as part of another one.
    fn tokens<'a>(text: &'a str, token: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        text.match_indices(token)
            .map(|(at, _)| (&text[..at], &text[at + token.len()..]))
            .filter(move |(before, after)| {
                !before.ends_with(is_part) && !after.starts_with(is_part)
            })
    }

    fn contains_token(text: &str, token: &str) -> bool {
        tokens(text, token).next().is_some()
    }

    /// True if code has the type as a value, and not only in patterns and comparisons.
    fn is_made(kind: EventType, code: &str) -> bool {
        let token = format!("EventType::{kind:?}");
        let mut found = tokens(code, &token);
        found.any(|(before, after)| {
            let (before, after) = (before.trim_end(), after.trim_start());
            let outside = after.trim_start_matches([')', ' ', '\n']);
            let is_pattern = ["=>", "|", "if "]
                .iter()
                .any(|next| outside.starts_with(next))
                || (after.starts_with(')') && outside.starts_with("= "))
                || before.ends_with('|')
                || in_matches(before);
            let is_compared = ["==", "!="]
                .iter()
                .any(|sign| before.ends_with(sign) || after.starts_with(sign))
                || before.ends_with('&');
            !is_pattern && !is_compared
        })
    }

    /// True if `matches!(` is still open at the end of the text.
    fn in_matches(before: &str) -> bool {
        before
            .rfind("matches!(")
            .is_some_and(|at| !before[at..].contains([';', '{', '}']))
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
    fn a_producer_has_the_type_as_a_value() {
        let kind = EventType::NodeDown;
        for (code, expected) in [
            ("let kind = EventType::NodeDown;", true),
            ("State::Down => EventType::NodeDown,", true),
            ("changes.push(event(EventType::NodeDown));", true),
            ("Some(EventType::NodeDown)", true),
            ("let x = matches!(a, B); make(EventType::NodeDown)", true),
            ("EventType::NodeDown => 1,", false),
            ("EventType::NodeUp | EventType::NodeDown => 1,", false),
            ("EventType::NodeDown\n    | EventType::NodeUp => 1,", false),
            ("Some(EventType::NodeDown) => 1,", false),
            ("EventType::NodeDown if late => 1,", false),
            ("if let Some(EventType::NodeDown) = kind {", false),
            ("matches!(kind, EventType::NodeDown)", false),
            (
                "matches!(kind, EventType::NodeUp | EventType::NodeDown)",
                false,
            ),
            ("if kind == EventType::NodeDown {", false),
            ("kinds.contains(&EventType::NodeDown)", false),
            ("let kind = EventType::NodeDownAgain;", false),
        ] {
            assert_eq!(is_made(kind, code), expected, "{code}");
        }
    }

    #[test]
    fn every_event_type_has_a_producer_and_a_test() {
        let services = Path::new(env!("CARGO_MANIFEST_DIR")).join("../services");
        let mut faults = Vec::new();
        let mut missing: BTreeSet<EventType> = EventType::ALL.iter().copied().collect();
        for row in TABLE.lines().filter(|row| !row.starts_with('#')) {
            let [kind, producer, test] = row.split('\t').collect::<Vec<_>>()[..] else {
                panic!("producers.tsv: {row}: not three columns");
            };
            let kind: EventType = kind.parse().unwrap();
            if !missing.remove(&kind) {
                faults.push(format!("{kind}: it is twice in producers.tsv"));
            }
            let read = |file: &str| {
                let path = services.join(file);
                code_and_tests(&path).unwrap_or_else(|error| panic!("{kind}: {file}: {error}"))
            };
            if !is_made(kind, &read(producer).0) {
                faults.push(format!("{kind}: {producer} does not make it"));
            }
            if !is_tested(kind, &read(test).1) {
                faults.push(format!("{kind}: no test in {test} names the whole type"));
            }
        }
        let missing = missing.iter();
        faults.extend(missing.map(|kind| format!("{kind}: it is not in producers.tsv")));
        assert!(faults.is_empty(), "{faults:#?}");
    }
}
