use super::*;

fn events(format: Format, body: &str) -> Result<Vec<IncomingEvent>, String> {
    let message = SourceMessage {
        cluster: "c1",
        source: "minio",
        id: "d1",
        r#type: None,
        at: DateTime::from_timestamp(1_700_000_000, 0).unwrap(),
        body: body.as_bytes(),
    };
    message.events(format)
}

/// As MinIO publishes it (its documentation, "Publish Events to NATS"), with a second record.
const MINIO: &str = r#"{"EventName":"s3:ObjectCreated:Put","Key":"images/my photo+1.jpg","Records":[
{"eventVersion":"2.0","eventSource":"minio:s3","awsRegion":"","eventTime":"2026-03-01T10:00:00.123Z","eventName":"s3:ObjectCreated:Put","userIdentity":{"principalId":"minio"},
 "s3":{"s3SchemaVersion":"1.0","configurationId":"Config","bucket":{"name":"images","arn":"arn:aws:s3:::images"},"object":{"key":"my+photo%2B1.jpg","size":2560,"eTag":"d41d8","sequencer":"15BF"}}},
{"eventTime":"2026-03-01T10:00:00.123Z","eventName":"s3:ObjectRemoved:Delete","s3":{"bucket":{"name":"images"},"object":{"key":"b","sequencer":"15C0"}}}]}"#;

#[test]
fn a_notification_of_minio_is_an_event_per_object() {
    let found = events(Format::S3, MINIO).unwrap();
    let kinds: Vec<&str> = found.iter().map(|event| event.r#type.as_str()).collect();
    assert_eq!(kinds, ["s3.object_created", "s3.object_removed"]);
    assert_eq!(found[0].data["key"], "my photo+1.jpg");
    assert_eq!(found[0].data["size"], 2560);
    assert_eq!(found[0].time.to_rfc3339(), "2026-03-01T10:00:00.123+00:00");
    assert_eq!(found[0].place(), Some(("c1", "minio")));
    // The same notification again is the same events; another write of the object is not.
    assert_eq!(events(Format::S3, MINIO).unwrap(), found);
    let rewritten = events(Format::S3, &MINIO.replace("15BF", "15D0")).unwrap();
    assert_ne!(rewritten[0].id, found[0].id);
    assert_eq!(rewritten[1].id, found[1].id);
}

#[test]
fn an_event_of_eventbridge_is_an_object() {
    let body = r#"{"version":"0","id":"17793124","detail-type":"Object Created","source":"aws.s3","time":"2026-03-01T10:00:00Z",
        "detail":{"version":"0","bucket":{"name":"b1"},"object":{"key":"a b+c","size":5,"etag":"b1946","sequencer":"00617F"}}}"#;
    let found = events(Format::S3, body).unwrap();
    assert_eq!(found[0].r#type, "s3.object_created");
    assert_eq!(found[0].data["key"], "a b+c");
    assert_eq!(found[0].data["etag"], "b1946");
}

#[test]
fn a_cloud_event_brings_no_attributes_of_ours() {
    let body = r#"{"specversion":"1.0","id":"7","source":"/lab","type":"sample.ready","time":"2026-03-01T10:00:00Z","user":"root","depth":0,"rootid":"x","data":{"n":1}}"#;
    let found = events(Format::CloudEvents, body).unwrap().remove(0);
    assert_eq!((found.user.as_str(), found.rootid.as_str()), ("", ""));
    assert_eq!(
        (found.r#type.as_str(), &found.data),
        ("sample.ready", &json!({"n": 1}))
    );
    assert!(events(Format::CloudEvents, &body.replace("1.0", "0.3")).is_err());
}

#[test]
fn what_is_no_message_of_the_form_is_refused() {
    for body in ["", "[]", "1", "{", "\u{0}"] {
        for format in [Format::Json, Format::CloudEvents, Format::S3] {
            assert!(events(format, body).is_err(), "{body:?}");
        }
    }
    assert!(
        events(
            Format::S3,
            r#"{"Records":[{"eventName":"s3:ObjectCreated:Put"}]}"#
        )
        .is_err()
    );
    assert!(events(Format::S3, r#"{"Type":"SubscriptionConfirmation"}"#).is_err());
    let kind = |body: &str| events(Format::Json, body).unwrap().remove(0).r#type;
    assert_eq!(kind("{}"), "event");
    assert_eq!(kind(r#"{"object_kind":"push"}"#), "push");
    assert!(events(Format::Json, r#"{"type":"a\u0000"}"#).is_err());
}
