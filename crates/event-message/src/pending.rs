//! When a chat is notified that a job is pending.
//!
//! pending-explainer publishes the reason almost immediately, but most jobs start a moment later. So an explanation
//! becomes a notice only when the job has been pending for the endpoint's `pending_threshold`, or immediately if the
//! job cannot start without someone's action. For each run, a wait is reported once, and so is each reason that
//! requires action, and that it waits for longer than nine of ten such jobs, which may still be a short wait: that is
//! due at the threshold too. A notice is dropped if the job starts or ends before it is sent, or if a newer
//! explanation replaces it.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use event_filter::{Filter, TypeSet, routine::waits_since};
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::{Event, EventType, RunKey};

/// Prefix of the keys of notices.
pub(crate) const PREFIX: &str = "pending/";
/// Topic of a wait that ends without action.
const WAIT: &str = "wait";
/// Topic of a wait beyond its estimate.
const LATE: &str = "late";
/// Topic of a hold.
const HELD: &str = "act:held";

/// A notice derived from an explanation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingNotice {
    /// The same for all explanations of a run.
    pub key: String,
    /// Reported at most once per run.
    pub topic: String,
    /// When it is due. `None`: immediately.
    pub due: Option<DateTime<Utc>>,
}

/// The notice for an explanation. `None` for other events.
pub fn notice(event: &Event, threshold: Duration) -> Option<PendingNotice> {
    let Some(Payload::Queue(queue)) = &event.payload else {
        return None;
    };
    let explanation = queue.explanation.as_ref()?;
    let key = key(&event.cluster, &queue.job.as_ref()?.run);
    // For an unknown reason nothing is known about who has to act.
    let waits = matches!(explanation.actor.as_str(), "" | "wait");
    if !waits && explanation.reason_class != "unknown" {
        return Some(PendingNotice {
            key,
            topic: format!("act:{}", explanation.reason_class),
            due: None,
        });
    }
    let topic = if explanation.is_late { LATE } else { WAIT };
    let threshold = TimeDelta::from_std(threshold).unwrap_or(TimeDelta::MAX);
    Some(PendingNotice {
        key,
        topic: topic.to_owned(),
        due: since(event).and_then(|since| since.checked_add_signed(threshold)),
    })
}

/// When the job of an explanation became pending. Time before a requested begin time does not count.
pub fn since(event: &Event) -> Option<DateTime<Utc>> {
    let Some(Payload::Queue(queue)) = &event.payload else {
        return None;
    };
    waits_since(queue.job.as_ref()?)
}

/// True for the key of a notice.
pub fn is_key(key: &str) -> bool {
    key.starts_with(PREFIX)
}

/// Keys of the notices that an event makes obsolete. The first task of an array that starts ends the array's own
/// wait.
pub fn ended(kind: EventType, event: &Event) -> Vec<String> {
    let Some(job) = event.job().filter(|_| ends(kind)) else {
        return Vec::new();
    };
    let mut keys = vec![key(&event.cluster, &job.run)];
    let run = RunKey::parse(&event.cluster, &job.run).ok();
    if let Some(run) = run.filter(|run| run.task_id.is_some() && job.start_time.is_some()) {
        let array = RunKey {
            task_id: None,
            ..run
        };
        keys.push(key(&event.cluster, &array.to_string()));
    }
    keys
}

/// Key of the run that an event releases from a hold. A later hold is reported again.
pub fn released(kind: EventType, event: &Event) -> Option<String> {
    let job = event.job().filter(|_| kind == EventType::JobReleased)?;
    Some(key(&event.cluster, &job.run))
}

/// Types that end waits and holds. Empty if the filter selects no explanations.
pub fn companions(filter: &Filter) -> TypeSet {
    let is_needed = |kind: &EventType| ends(*kind) || *kind == EventType::JobReleased;
    let all = EventType::ALL.iter().copied();
    let needed = all.filter(|kind| filter.selects(EventType::QueueExplained) && is_needed(kind));
    needed.collect()
}

fn ends(kind: EventType) -> bool {
    kind == EventType::JobStarted || kind.is_end()
}

fn key(cluster: &str, run: &str) -> String {
    format!("{PREFIX}{cluster}/{run}")
}

/// The topics already sent for a run, as stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublishedTopics(Vec<String>);

impl PublishedTopics {
    /// Parses the stored text.
    pub fn read(text: Option<&String>) -> Self {
        let words = text.into_iter().flat_map(|text| text.split(' '));
        Self(words.map(str::to_owned).collect())
    }

    /// True if the topic was sent. That a job waits too long also says that it waits.
    pub fn has(&self, topic: &str) -> bool {
        let covers = |sent: &str| sent == topic || (topic == WAIT && sent == LATE);
        self.0.iter().any(|sent| covers(sent))
    }

    /// The text to store after a release. The outer `Option` is `None` if nothing changes.
    pub fn released(mut self) -> Option<Option<String>> {
        let before = self.0.len();
        self.0.retain(|topic| topic != HELD);
        let changed = self.0.len() < before;
        changed.then(|| (!self.0.is_empty()).then(|| self.0.join(" ")))
    }

    /// The text to store after another topic was sent.
    pub fn and(mut self, topic: String) -> String {
        self.0.push(topic);
        self.0.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use event_filter::{TypePattern, sample};
    use mesh_events::proto::mesh::job::v1::Job;
    use mesh_events::proto::mesh::queue::v1::{Explanation, QueueEvent};
    use mesh_events::timestamp;

    use super::*;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::seconds(1_763_760_000 + seconds)
    }

    fn explained(actor: &str, class: &str, eligible: Option<i64>) -> Event {
        let job = Job {
            run: "job/7/1763760000".into(),
            submit_time: Some(timestamp(at(0))),
            eligible_time: eligible.map(|seconds| timestamp(at(seconds))),
            ..Job::default()
        };
        Event {
            payload: Some(Payload::Queue(QueueEvent {
                job: Some(job),
                explanation: Some(Explanation {
                    actor: actor.into(),
                    reason_class: class.into(),
                    ..Explanation::default()
                }),
            })),
            ..sample::event(EventType::QueueExplained)
        }
    }

    #[test]
    fn a_wait_is_due_at_the_threshold_and_at_once_where_somebody_has_to_act() {
        let threshold = Duration::from_secs(900);
        for (actor, class, eligible, topic, due) in [
            ("wait", "waiting_turn", Some(1), "wait", Some(at(901))),
            ("", "waiting_turn", None, "wait", Some(at(900))),
            ("wait", "begin_time", Some(7_200), "wait", Some(at(8_100))),
            ("user", "held", None, "act:held", None),
            ("admin", "partition", Some(1), "act:partition", None),
            ("admin", "unknown", None, "wait", Some(at(900))),
        ] {
            let notice = notice(&explained(actor, class, eligible), threshold).unwrap();
            assert_eq!((notice.topic.as_str(), notice.due), (topic, due), "{class}");
            assert_eq!(notice.key, "pending/example/job/7/1763760000");
            assert!(is_key(&notice.key));
        }
        // Later than nine of ten is not yet long.
        for (eligible, due) in [
            (None, at(900)),
            (Some(1), at(901)),
            (Some(7_200), at(8_100)),
        ] {
            let mut late = explained("wait", "waiting_turn", eligible);
            if let Some(Payload::Queue(queue)) = &mut late.payload {
                queue.explanation.as_mut().unwrap().is_late = true;
            }
            let notice = notice(&late, threshold).unwrap();
            assert_eq!((notice.topic.as_str(), notice.due), ("late", Some(due)));
        }
        assert_eq!(
            notice(&sample::event(EventType::JobStarted), threshold),
            None
        );
    }

    #[test]
    fn a_start_ends_the_wait_of_its_run_and_of_its_array() {
        let started = sample::event(EventType::JobStarted);
        assert_eq!(
            ended(EventType::JobStarted, &started),
            [
                "pending/example/job/1230_4/1763760000",
                "pending/example/job/1230/1763760000"
            ]
        );
        let mut cancelled = sample::event(EventType::JobCancelled);
        if let Some(Payload::Job(payload)) = &mut cancelled.payload {
            payload.job.as_mut().unwrap().start_time = None;
        }
        assert_eq!(
            ended(EventType::JobCancelled, &cancelled),
            ["pending/example/job/1230_4/1763760000"],
            "the other tasks go on waiting"
        );
        let held = sample::event(EventType::JobHeld);
        assert!(ended(EventType::JobHeld, &held).is_empty());
    }

    #[test]
    fn only_who_is_told_of_waits_needs_starts_and_ends() {
        let of = |pattern: &str| {
            let pattern: TypePattern = pattern.parse().unwrap();
            companions(&Filter::new(&[pattern], &[], &[]))
        };
        assert!(of("queue.*").contains(EventType::JobStarted));
        assert!(of("queue.explained").contains(EventType::JobCancelled));
        assert!(of("queue.explained").contains(EventType::JobReleased));
        assert!(of("job.*").is_empty());
    }

    #[test]
    fn what_was_told_is_known_by_its_topic() {
        let stored = PublishedTopics::default().and("wait".to_owned());
        let stored = PublishedTopics::read(Some(&stored)).and("act:held".to_owned());
        let topics = PublishedTopics::read(Some(&stored));
        assert!(topics.has("wait") && topics.has("act:held") && !topics.has("held"));
        assert!(!PublishedTopics::read(None).has("wait"));
        assert_eq!(topics.released(), Some(Some("wait".to_owned())));
        let late = PublishedTopics::default().and("late".to_owned());
        let late = PublishedTopics::read(Some(&late));
        assert!(
            late.has("wait"),
            "who is told that it waits too long knows that it waits"
        );
        assert!(!late.has("act:held"));
        let only = "act:held".to_owned();
        assert_eq!(PublishedTopics::read(Some(&only)).released(), Some(None));
        assert_eq!(PublishedTopics::default().released(), None);
    }
}
