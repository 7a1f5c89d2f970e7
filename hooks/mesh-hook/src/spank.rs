//! Reports of the SPANK plugin (`hooks/spank/mesh_spank.c`). Pure.
//!
//! `1 MOMENT MILLISECONDS JOB STEP UID NODE TASKS ENDED FAILED LOST[ TASK:CODE:SIGNAL]…`, explained at `StepReport` in hook.proto.

use std::time::{Duration, UNIX_EPOCH};

use chrono::{DateTime, Utc};
use mesh_events::hooks::SPANK_HOOK;
use mesh_events::proto::mesh::hook::v1::{Doorbell, StepReport, TaskEnd};
use uuid::Uuid;

/// Longest report. The plugin's are shorter; a longer datagram is not one of its reports.
pub const MAX_BYTES: usize = 2048;
const MOMENTS: &[&str] = &["start", "task", "exit"];
/// Most failed tasks that the plugin names.
const MAX_FAILURES: usize = 64;

/// The doorbell of a report, with a new id; `None` if the bytes are no report.
pub fn doorbell(cluster: &str, host: &str, datagram: &[u8]) -> Option<Doorbell> {
    let text = std::str::from_utf8(datagram).ok()?;
    if datagram.len() > MAX_BYTES {
        return None;
    }
    let mut fields = text.split(' ');
    if fields.next()? != "1" {
        return None;
    }
    let moment = fields.next().filter(|moment| MOMENTS.contains(moment))?;
    let at = UNIX_EPOCH.checked_add(Duration::from_millis(fields.next()?.parse().ok()?))?;
    // chrono has no later years.
    if at > UNIX_EPOCH + Duration::from_secs(u32::MAX.into()) {
        return None;
    }
    let mut number = || fields.next()?.parse::<u32>().ok();
    let job_id = number().filter(|id| *id > 0)?;
    let step = StepReport {
        moment: moment.to_owned(),
        step_id: number()?,
        uid: number()?,
        node: number()?,
        tasks: number()?,
        ended: number()?,
        failed: number()?,
        lost: number()?,
        failures: fields
            .map(task_end)
            .collect::<Option<Vec<_>>>()
            .filter(|failures| failures.len() <= MAX_FAILURES)?,
    };
    Some(Doorbell {
        id: Uuid::now_v7().to_string(),
        hook: SPANK_HOOK.to_owned(),
        cluster: cluster.to_owned(),
        host: host.to_owned(),
        called_at: Some(mesh_events::timestamp(DateTime::<Utc>::from(at))),
        job_id,
        step: Some(step),
        ..Doorbell::default()
    })
}

fn task_end(text: &str) -> Option<TaskEnd> {
    let mut numbers = text.split(':').map(str::parse::<u32>);
    let mut number = || numbers.next()?.ok();
    let end = TaskEnd {
        task: number()?,
        code: number()?,
        signal: number()?,
    };
    numbers.next().is_none().then_some(end)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_report_is_read_in_full() {
        let text = b"1 exit 1763760000123 12 4294967291 20001 1 4 4 2 1 2:3:0 3:0:9";
        let doorbell = doorbell("c", "h", text).unwrap();
        assert_eq!((doorbell.job_id, doorbell.hook.as_str()), (12, "Spank"));
        let at = doorbell.called_at.unwrap();
        assert_eq!((at.seconds, at.nanos), (1_763_760_000, 123_000_000));
        let end = |task, code, signal| TaskEnd { task, code, signal };
        let expected = StepReport {
            moment: "exit".into(),
            step_id: u32::MAX - 4,
            uid: 20_001,
            node: 1,
            tasks: 4,
            ended: 4,
            failed: 2,
            failures: vec![end(2, 3, 0), end(3, 0, 9)],
            lost: 1,
        };
        assert_eq!(doorbell.step, Some(expected));
    }

    #[test]
    fn other_bytes_are_no_report() {
        let good = "1 start 1763760000123 12 0 20001 0 1 0 0 0";
        let read = |text: &str| doorbell("c", "h", text.as_bytes());
        assert!(read(good).is_some());
        for text in [
            good.replace("1 start", "2 start"),
            good.replace("start", "begin"),
            good.replace(" 12 ", " 0 "),
            good.replace(" 12 ", " 99999999999 "),
            good.replace("1763760000123", "18446744073709551615"),
            good.replace("1763760000123", "-1"),
            good[..good.len() - 2].to_owned(),
            format!("{good} 1:2"),
            format!("{good} 1:2:3:4"),
            format!("{good} "),
            format!("{good}{}", " 1:2:3".repeat(MAX_FAILURES + 1)),
        ] {
            assert_eq!(read(&text), None, "{text}");
        }
        assert_eq!(doorbell("c", "h", b"1 start \xff"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes: Vec<u8>, text in "1 (start|task|exit)( [0-9]{1,20}){7,11}( [0-9:]{0,9}){0,3}") {
            doorbell("c", "h", &bytes);
            doorbell("c", "h", text.as_bytes());
        }
    }
}
