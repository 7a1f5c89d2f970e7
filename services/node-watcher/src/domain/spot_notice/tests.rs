use super::*;

fn time(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

const CALLED: &str = "2026-11-26T08:20:05Z";

/// `provider action deadline instance`.
fn read(text: &str) -> String {
    match parse(text, time(CALLED)) {
        Parsed::Notice {
            notice,
            instance_id,
        } => {
            let deadline = notice
                .deadline
                .map_or("none".to_owned(), |at| at.to_rfc3339());
            format!(
                "{} {} {deadline} {instance_id}",
                notice.provider, notice.action
            )
            .trim_end()
            .to_owned()
        }
        Parsed::Nothing => "nothing".to_owned(),
        Parsed::Unknown => "unknown".to_owned(),
    }
}

#[test]
fn notices_of_the_providers_are_read() {
    for (text, expected) in [
        (
            r#"{"action": "terminate", "time": "2026-11-26T08:22:00Z"}"#,
            "aws terminate 2026-11-26T08:22:00+00:00",
        ),
        (
            r#"{"version":"0","id":"12345678","detail-type":"EC2 Spot Instance Interruption Warning","source":"aws.ec2","time":"2026-11-26T08:20:00Z","detail":{"instance-id":"i-1234567890abcdef0","instance-action":"stop"}}"#,
            "aws stop 2026-11-26T08:22:00+00:00 i-1234567890abcdef0",
        ),
        ("TRUE\n", "gcp preempt 2026-11-26T08:20:35+00:00"),
        (
            r#"{"DocumentIncarnation":1,"Events":[{"EventId":"1","EventType":"Freeze","NotBefore":""},{"EventId":"2","EventType":"Preempt","ResourceType":"VirtualMachine","Resources":["vm1"],"EventStatus":"Scheduled","NotBefore":"Thu, 26 Nov 2026 08:20:30 GMT"}]}"#,
            "azure preempt 2026-11-26T08:20:30+00:00",
        ),
        (
            r#"{"Events":[{"EventType":"Preempt","EventStatus":"Started","NotBefore":""}]}"#,
            "azure preempt none",
        ),
        // Nothing is reclaimed.
        (r#"{"noticeTime": "2026-11-26T08:20:00Z"}"#, "nothing"),
        (
            r#"{"detail-type":"EC2 Instance Rebalance Recommendation"}"#,
            "nothing",
        ),
        (r#"{"DocumentIncarnation":2,"Events":[]}"#, "nothing"),
        ("FALSE", "nothing"),
        ("", "nothing"),
        // Answers that are none.
        ("<html>404 - Not Found</html>", "unknown"),
        (
            r#"{"action": "dance", "time": "2026-11-26T08:22:00Z"}"#,
            "unknown",
        ),
    ] {
        assert_eq!(read(text), expected, "{text}");
    }
}

const NOTICE: Option<&str> = Some(r#"{"action": "terminate", "time": "2026-11-26T08:22:00Z"}"#);

#[test]
fn a_deadline_is_bounded_by_our_own_clock() {
    let forged = SpotNotice {
        deadline: Some(time(CALLED) + TimeDelta::hours(23)),
        ..notice(Some(time(CALLED)))
    };
    let until = time(CALLED) + AWS_NOTICE + DETECTION_TIME;
    assert_eq!(forged.effective_until(), until);
    assert!(!forged.is_over(until) && forged.is_over(until + TimeDelta::seconds(1)));
}

#[test]
fn times_out_of_range_are_refused() {
    let now = time(CALLED);
    let called = |after: TimeDelta| check_call(now + after, now).is_ok();
    assert!(called(TimeDelta::seconds(59)) && called(TimeDelta::days(-13)));
    assert!(!called(TimeDelta::seconds(61)) && !called(TimeDelta::days(-15)));
    let near = |text: &str, at| match parse(text, at) {
        Parsed::Notice { notice, .. } => notice.check_deadline().is_ok(),
        other => panic!("{other:?}"),
    };
    assert!(near(NOTICE.unwrap(), now));
    assert!(!near(
        r#"{"action": "terminate", "time": "2099-01-01T00:00:00Z"}"#,
        now
    ));
    let aws = |time: &str| format!(r#"{{"action": "terminate", "time": "{time}"}}"#);
    assert!(near(&aws("2026-11-26T08:23:05Z"), now) && !near(&aws("2026-11-26T08:23:06Z"), now));
    assert!(near(&aws("2026-11-25T08:20:05Z"), now) && !near(&aws("2026-11-25T08:20:04Z"), now));
    let azure = |time: &str| {
        format!(
            r#"{{"Events":[{{"EventType":"Preempt","NotBefore":"Thu, 26 Nov 2026 {time} GMT"}}]}}"#
        )
    };
    assert!(near(&azure("08:36:05"), now) && !near(&azure("08:36:06"), now));
    // The end of chrono's range.
    assert!(near("TRUE", DateTime::<Utc>::MAX_UTC));
}

/// A notice about some nodes, published at a time or not yet.
fn notice(published_at: Option<DateTime<Utc>>) -> SpotNotice {
    match parse(NOTICE.unwrap(), time(CALLED)) {
        Parsed::Notice { notice, .. } => SpotNotice {
            published_at,
            ..notice
        },
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_notice_published_by_a_clock_that_was_ahead_hides_no_other() {
    let now = time(CALLED);
    let ahead = notice(Some(now + TimeDelta::days(2)));
    assert!(!ahead.is_recent(now));
    assert!(notice(Some(now + TimeDelta::minutes(1))).is_recent(now));
}
