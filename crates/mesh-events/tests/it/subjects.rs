use mesh_events::catalogue::{CONSUMERS, ROLES, STREAMS, permissions};
use mesh_events::{Category, EventType, subject};
use mesh_testkit::fixtures::{job, job_event};

#[test]
fn subjects_name_partition_account_and_user() {
    let mut event = job_event(EventType::JobStarted, job(1));
    assert_eq!(
        subject::of(&event).unwrap(),
        "slurm.testbed.job.started.cpu.alice"
    );
    event.owner.as_mut().unwrap().user = "al.ice".into();
    assert_eq!(
        subject::of(&event).unwrap(),
        "slurm.testbed.job.started.cpu.al_2Eice"
    );
    event.owner = None;
    assert_eq!(
        subject::of(&event).unwrap(),
        "slurm.testbed.job.started.cpu._"
    );
    let cost = job_event(EventType::CostFinalized, job(1));
    assert_eq!(
        subject::of(&cost).unwrap(),
        "slurm.testbed.cost.finalized.physics.alice"
    );
}

#[test]
fn no_subject_holds_a_job_id() {
    // Each distinct subject costs the broker memory, and the number of jobs is unlimited.
    for kind in EventType::ALL
        .iter()
        .filter(|kind| kind.category() == Category::Job)
    {
        let subject = subject::of(&job_event(*kind, job(987_654))).unwrap();
        assert!(!subject.contains("987654"), "{subject}");
    }
}

#[test]
fn names_in_the_catalogue_fit_the_rules_of_the_bus() {
    for stream in STREAMS {
        assert!(stream.name.len() < 32, "{stream:?}");
    }
    for consumer in CONSUMERS {
        assert!(consumer.name.len() < 32, "{consumer:?}");
        assert!(
            STREAMS.iter().any(|stream| stream.name == consumer.stream),
            "{consumer:?}"
        );
        assert!(
            ROLES.contains(&consumer.name),
            "a consumer is named for its service"
        );
    }
}

#[test]
fn only_the_administrator_has_wildcard_rights() {
    for role in ROLES.iter().filter(|role| **role != "admin") {
        let rights = permissions(role, "c1").unwrap();
        for subject in rights.publish.iter().chain(&rights.subscribe) {
            assert!(
                subject != ">" && !subject.starts_with('*'),
                "{role}: {subject}"
            );
            assert!(!subject.starts_with("$JS.API.>"), "{role}: {subject}");
        }
    }
    assert_eq!(permissions("nobody", "c1"), None);
}
