use chrono_tz::Tz;

use super::*;
use crate::domain::Micros;
use crate::domain::calendar_period::Periodicity;

const EXAMPLE: &str = crate::EXAMPLE_BUDGETS;

fn faults(text: &str) -> Vec<String> {
    match parse(text) {
        Err(BudgetsError::Invalid(faults)) => faults.iter().map(ToString::to_string).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_example_has_every_form() {
    let budgets = parse(EXAMPLE).unwrap();
    let names: Vec<_> = budgets.iter().map(|budget| budget.name.as_str()).collect();
    assert_eq!(names, ["nlp", "priya", "urgent", "grant-a17"]);
    let nlp = &budgets[0];
    assert_eq!(
        nlp.scope_texts(),
        [
            "account=nlp with subaccounts",
            "account=vision with subaccounts"
        ]
    );
    assert_eq!(
        (nlp.amount, nlp.zone),
        (Micros(3_000_000_000), Tz::Europe__Berlin)
    );
    assert_eq!(
        (nlp.thresholds.as_slice(), nlp.forecast),
        ([50, 80, 100].as_slice(), 100)
    );
    assert_eq!(budgets[2].periodicity, Periodicity::Rolling(30 * 86_400));
    // Midnight in Berlin.
    let bounds = (1_767_222_000, 1_782_856_800);
    assert_eq!(budgets[3].periodicity, Periodicity::Once(bounds));
}

#[test]
fn all_faults_are_reported_at_once_with_budget_and_key() {
    let found = faults(
        "[[budget]]
name = \"one\"
scope = { account = \"nlp\", subtree = 1, group = \"x\" }
period = \"weekly\"
timezone = \"Europe/Bonn\"
amount = \"-3\"
counts = \"queued\"
thresholds = [0]
notify = [\"everyone\"]
colour = \"red\"
[[budget]]
name = \"one\"
scope = {}
from = 2026-02-01
to = 2026-01-01
[[budget]]
",
    );
    let text = found.join("\n");
    for expected in [
        "budgets.toml: line 3: budget \"one\": scope.subtree: is not true or false",
        "line 3: budget \"one\": scope.group: is not one of identity",
        "line 4: budget \"one\": period: ",
        "line 5: budget \"one\": timezone: ",
        "line 6: budget \"one\": amount: ",
        "line 7: budget \"one\": counts: ",
        "line 8: budget \"one\": thresholds: ",
        "line 9: budget \"one\": notify: ",
        "line 10: budget \"one\": colour: is not a key",
        "budget \"one\": name: is also a budget of budgets.toml",
        "line 13: budget \"one\": scope: is empty",
        "line 15: budget \"one\": to: is not after",
        "budget \"one\": amount: is missing",
        "budget line 16: name: is missing",
        "budget line 16: period: is missing",
    ] {
        assert!(text.contains(expected), "{expected} in\n{text}");
    }
}

#[test]
fn names_and_currencies_are_compared_across_files() {
    let folder = tempfile::tempdir().unwrap();
    let budget = |currency: &str| {
        format!(
            "[[budget]]\nname = \"nlp\"\nscope = {{ account = \"nlp\" }}\nperiod = \"year\"\namount = 1\ncurrency = \"{currency}\"\n"
        )
    };
    std::fs::write(folder.path().join("a.toml"), budget("EUR")).unwrap();
    std::fs::write(folder.path().join("b.toml"), budget("USD")).unwrap();
    std::fs::write(folder.path().join(".c.toml"), "hidden").unwrap();
    let error = load(folder.path(), None).unwrap_err().to_string();
    assert!(
        error.contains("b.toml: line 1: budget \"nlp\": name: is also a budget of "),
        "{error}"
    );
    assert!(
        error.contains("currency: \"USD\" is not the currency of another budget"),
        "{error}"
    );
    let file = folder.path().join("a.toml");
    let error = load(&file, Some("GBP")).unwrap_err();
    assert!(error.to_string().contains("the price book, \"GBP\""));
    assert_eq!(load(&file, Some("EUR")).unwrap().len(), 1);
}

#[test]
fn a_unix_user_needs_one_cluster() {
    let budget = |scope: &str| {
        let text = format!(
            "[[budget]]\nname = \"own\"\nscope = {{ user = \"alice\"{scope} }}\nperiod = \"month\"\namount = 1\n"
        );
        parse(&text)
    };
    let error = budget("").unwrap_err().to_string();
    let expected = "line 3: budget \"own\": scope.user: has no `cluster` beside it";
    assert!(error.contains(expected), "{error}");
    assert!(budget(", account = \"nlp\"").is_err());
    let error = budget(", cluster = [\"a\", \"b\"]")
        .unwrap_err()
        .to_string();
    let expected = "scope.user: has several clusters beside it";
    assert!(error.contains(expected), "{error}");
    assert_eq!(budget(", cluster = [\"a\"]").unwrap().len(), 1);
}

#[test]
fn a_subtree_is_of_the_accounts_beside_it() {
    let budget = |scope: &str| {
        let text = format!(
            "[[budget]]\nname = \"nlp\"\nscope = {{ {scope} }}\nperiod = \"month\"\namount = 1\n"
        );
        parse(&text).map(|mut budgets| budgets.remove(0))
    };
    let nlp = budget("account = [\"nlp\", \"vision\"], subtree = true").unwrap();
    assert_eq!(
        nlp.scope_texts(),
        [
            "account=nlp with subaccounts",
            "account=vision with subaccounts"
        ]
    );
    let alone = budget("account = \"nlp\", subtree = false").unwrap();
    assert_eq!(alone, budget("account = \"nlp\"").unwrap());
    for scope in ["subtree = true", "cluster = \"c\", subtree = true"] {
        let error = budget(scope).unwrap_err().to_string();
        let expected = "scope.subtree: has no `account` beside it";
        assert!(error.ends_with(expected), "{error}");
    }
    let error = budget("account = 1, subtree = true").unwrap_err();
    assert!(!error.to_string().contains("subtree"), "{error}");
    let error = budget("subtree = false").unwrap_err().to_string();
    assert!(error.contains("scope: is empty"), "{error}");
}
