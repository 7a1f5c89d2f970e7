use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::data;

#[test]
fn the_whole_table_is_read() {
    assert_eq!(data::rows(data::PENDING_REASONS).count(), 221);
    assert_eq!(rows().len(), 221);
    assert_eq!(descriptions().len(), 19);
    assert_eq!(data::columns(data::PENDING_REASONS).len(), 12);
    for row in rows() {
        let found = Reason::lookup(row.reason);
        assert_eq!(found.row.map(|found| found.reason), Some(row.reason));
        assert_ne!(
            found.class(),
            ReasonClass::Unknown,
            "{}: category {} has no class",
            row.reason,
            row.category
        );
        assert!(
            !row.meaning.is_empty() && !row.advice.is_empty(),
            "{}",
            row.reason
        );
    }
    for description in descriptions() {
        assert!(
            table::find(description.reason).is_some(),
            "{} names no row",
            description.pattern
        );
    }
}

#[test]
fn every_class_but_unknown_has_a_reason() {
    let used: BTreeSet<_> = rows()
        .iter()
        .map(|row| Reason::lookup(row.reason).class())
        .collect();
    let all: BTreeSet<_> = ReasonClass::ALL
        .into_iter()
        .filter(|class| *class != ReasonClass::Unknown)
        .collect();
    assert_eq!(used, all);
}

#[test]
fn a_dependency_that_can_never_come_true_is_news() {
    let waits = Reason::lookup("Dependency");
    let never = Reason::lookup("DependencyNeverSatisfied");
    assert_eq!(waits.class(), ReasonClass::Dependency);
    assert_eq!(never.class(), ReasonClass::DependencyNeverSatisfied);
    assert_eq!(
        (waits.actor(), never.actor()),
        (Some(Actor::Wait), Some(Actor::User))
    );
}

#[test]
fn free_texts_are_matched_first_in_both_spellings() {
    for text in [
        "ReqNodeNotAvail, UnavailableNodes:n4",
        "ReqNodeNotAvail,_UnavailableNodes:n4",
        "(ReqNodeNotAvail, UnavailableNodes:n4)",
    ] {
        let found = Reason::lookup(text);
        assert_eq!(found.reason(), "ReqNodeNotAvail", "{text}");
        assert_eq!(found.captures["nodes"], "n4", "{text}");
        assert_eq!(found.class(), ReasonClass::NodeUnavailable, "{text}");
    }
    let found = Reason::lookup("launch_failed_requeued_held");
    assert_eq!(
        (found.reason(), found.class(), found.actor()),
        ("JobHeldUser", ReasonClass::Held, Some(Actor::User))
    );
    let found = Reason::lookup("RaisedSignal:9(Killed)");
    assert_eq!(
        (
            found.captures["sig"].as_str(),
            found.captures["name"].as_str()
        ),
        ("9", "Killed")
    );
    let found = Reason::lookup(
        "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions",
    );
    assert_eq!(
        (found.reason(), found.class()),
        ("Resources", ReasonClass::WaitingTurn),
        "Slurm prints it where no node is down, too"
    );
    let found = Reason::lookup(
        "Job's account not permitted to use this partition (closed allows ml not physics)",
    );
    assert_eq!(
        (
            found.reason(),
            found.class(),
            found.captures["holder"].as_str()
        ),
        ("AccountNotAllowed", ReasonClass::Request, "physics")
    );
}

#[test]
fn a_queue_moving_on_stays_in_its_class() {
    assert_eq!(
        Reason::lookup("Priority").class(),
        Reason::lookup("Resources").class()
    );
}

#[test]
fn unknown_details_and_keywords_are_accepted() {
    assert_eq!(
        Reason::lookup("ReqNodeNotAvail, because of something new").class(),
        ReasonClass::NodeUnavailable
    );
    let found = Reason::lookup("TotallyNew");
    assert_eq!(
        (found.reason(), found.class(), found.row),
        ("TotallyNew", ReasonClass::Unknown, None)
    );
}

proptest! {
    #[test]
    fn any_text_is_survived(text in ".*") {
        let found = Reason::lookup(&text);
        prop_assert_eq!(found.text, text);
    }
}
