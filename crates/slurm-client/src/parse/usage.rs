//! The rows of `sacct -D -P --noconvert` with steps: runs and their resource usage.

use slurm_types::{JobState, UnixTime, parse_duration_secs};

use super::accounting::{FIELDS as RUN_FIELDS, record};
use super::{Separator, delimited, leading, text};
use crate::drift::Unread;
use crate::record::{StepUsage, TresUsage, UsageRecord};

/// Columns in addition to those of a run. Every one exists on 22.05 and on 26.05 (`sacct -e`).
const MORE: [&str; 10] = [
    "TotalCPU",
    "UserCPU",
    "SystemCPU",
    "ConsumedEnergyRaw",
    "NTasks",
    "MaxRSS",
    "MaxRSSNode",
    "MaxRSSTask",
    "TRESUsageInMax",
    "TRESUsageInTot",
];

/// Requested columns.
pub(crate) fn fields() -> String {
    [&RUN_FIELDS[..], &MORE[..]].concat().join(",")
}

/// The runs in the order of the output, and the rows that could not be parsed; `None` if the output does not have these columns.
pub(crate) fn usage(output: &str, separator: &Separator) -> Option<(Vec<UsageRecord>, Unread)> {
    let (mut runs, mut unread): (Vec<UsageRecord>, _) = (Vec::new(), Unread::default());
    // Steps follow their run; of a job with several runs each run is followed by its own (22.05). So a step never belongs to a run before
    // a row that could not be parsed.
    let mut run_is_read = false;
    for row in delimited(output, separator, RUN_FIELDS.len() + MORE.len())? {
        let get = |field: &str| {
            let mut fields = RUN_FIELDS.iter().chain(&MORE);
            let at = fields.position(|name| *name == field);
            at.and_then(|at| row.get(at)).copied().unwrap_or_default()
        };
        let Some((job, step)) = row[0].split_once('.') else {
            let record = record(&row);
            run_is_read = record.is_some();
            match record {
                Some(record) => runs.push(UsageRecord {
                    record,
                    cpu_millis: millis(get("TotalCPU")),
                    user_cpu_millis: millis(get("UserCPU")),
                    system_cpu_millis: millis(get("SystemCPU")),
                    // Slurm prints 0 where energy is not measured (22.05).
                    energy_joules: amount(get("ConsumedEnergyRaw")).filter(|joules| *joules > 0),
                    steps: Vec::new(),
                }),
                None => unread.note(&row.join("|")),
            }
            continue;
        };
        let run = runs.last_mut().filter(|run| {
            let id = run.record.job_id.map(|id| id.to_string());
            run_is_read && id.as_deref() == Some(job)
        });
        let Some(run) = run else {
            unread.note(&row.join("|"));
            continue;
        };
        let end = UnixTime::parse(get("End"));
        run.steps.push(StepUsage {
            id: step.to_owned(),
            ended: end.is_some(),
            end,
            state: JobState::parse_accounting(get("State")).0.base,
            tasks: leading(get("NTasks")),
            max_rss_bytes: amount(get("MaxRSS")),
            max_rss_node: text(get("MaxRSSNode")),
            max_rss_task: leading(get("MaxRSSTask")),
            max: used(get("TRESUsageInMax")),
            total: used(get("TRESUsageInTot")),
        });
    }
    Some((runs, unread))
}

/// `1-02:03:04`, `03:04.567` in milliseconds.
fn millis(text: &str) -> Option<u64> {
    let (whole, fraction) = text.trim().split_once('.').unwrap_or((text, ""));
    let seconds = parse_duration_secs(whole)?;
    let fraction = format!("{fraction:0<3}");
    let fraction: u64 = fraction.get(..3)?.parse().ok()?;
    seconds.checked_mul(1_000)?.checked_add(fraction)
}

/// `cpu=00:00:03,mem=71139328,gres/gpuutil=80`. Invalid amounts are left out.
fn used(text: &str) -> TresUsage {
    let items = text.split(',').filter_map(|item| {
        let (name, value) = item.trim().split_once('=')?;
        Some((name.to_owned(), amount(value)?))
    });
    items.collect()
}

/// A number, a size such as `12368K`, or a time in seconds. Slurm's placeholders for "no value" are at the top of the 64-bit range.
fn amount(text: &str) -> Option<u64> {
    let text = text.trim();
    if text.contains(':') {
        return parse_duration_secs(text);
    }
    let unit = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = text.split_at(unit.unwrap_or(text.len()));
    let shift = match unit {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        "P" => 50,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let tenths = u64::from(fraction.bytes().next()?.checked_sub(b'0')?);
    let whole: u64 = whole.parse().ok().filter(|whole| *whole < 1 << 63)?;
    let below = (tenths << shift) / 10;
    whole.checked_mul(1 << shift)?.checked_add(below)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows as sacct 22.05.8 printed them, without irrelevant columns.
    fn answer(separator: &Separator, rows: &[&[(&str, &str)]]) -> String {
        let fields = fields();
        let line = |row: &&[(&str, &str)]| {
            let value = |field: &str| {
                let value = row.iter().find(|(name, _)| *name == field);
                value.map_or("", |(_, value)| *value)
            };
            separator.join(&fields.split(',').map(value).collect::<Vec<_>>()) + "\n"
        };
        rows.iter().map(line).collect()
    }

    #[test]
    fn steps_belong_to_the_run_they_follow() {
        let separator = Separator::random();
        let run = |state, end, cpu| {
            [
                ("JobIDRaw", "7"),
                ("JobID", "7"),
                ("State", state),
                ("End", end),
                ("TotalCPU", cpu),
                ("JobName", "a\nb"),
                ("ConsumedEnergyRaw", "0"),
            ]
        };
        let step = |id, rss| {
            [
                ("JobIDRaw", id),
                ("End", "2026-11-22T03:10:49"),
                ("State", "CANCELLED by 0"),
                ("NTasks", "2"),
                ("MaxRSS", rss),
                ("MaxRSSNode", "n1"),
                ("MaxRSSTask", "1"),
                (
                    "TRESUsageInMax",
                    "cpu=00:00:01,energy=0,mem=71139328,pages=3",
                ),
                ("TRESUsageInTot", "cpu=00:00:03,mem=142254080"),
            ]
        };
        let text = answer(
            &separator,
            &[
                &run("REQUEUED", "2026-11-22T03:10:51", "00:03.867"),
                &step("7.batch", "12664832"),
                &step("7.0", "71139328"),
                &run("RUNNING", "Unknown", "00:00:00"),
                &[("JobIDRaw", "7.batch"), ("End", "Unknown")],
            ],
        );
        let (runs, unread) = usage(&text, &separator).unwrap();
        assert_eq!((runs.len(), unread.count), (2, 0));
        assert_eq!(runs[0].cpu_millis, Some(3_867));
        assert_eq!(runs[0].energy_joules, None);
        assert_eq!(runs[0].record.name, "a\nb");
        let steps = &runs[0].steps;
        assert_eq!((steps[0].id.as_str(), steps[1].id.as_str()), ("batch", "0"));
        assert_eq!(steps[1].max_rss_bytes, Some(71_139_328));
        assert_eq!(
            (steps[1].max["cpu"], steps[1].total["mem"]),
            (1, 142_254_080)
        );
        assert!(steps[0].ended && !runs[1].steps[0].ended);
        assert_eq!(steps[0].state, Some(slurm_types::JobBaseState::Cancelled));
        assert!(steps[0].end < runs[0].record.end);
        assert!(runs[1].steps[0].max.is_empty());
    }

    #[test]
    fn invalid_run_keys_are_detected() {
        let separator = Separator::random();
        let text = answer(
            &separator,
            &[&[("JobIDRaw", "7.batch")], &[("JobIDRaw", "x")]],
        );
        let (runs, unread) = usage(&text, &separator).unwrap();
        assert_eq!((runs, unread.count), (vec![], 2));
        assert!(unread.first.starts_with("7.batch"), "{}", unread.first);
        assert_eq!(usage("sacct: error\n", &separator), None);
    }

    #[test]
    fn a_step_is_not_counted_for_a_run_it_does_not_follow() {
        let separator = Separator::random();
        let text = answer(
            &separator,
            &[
                &[("JobIDRaw", "7")],
                &[("JobIDRaw", "7.batch")],
                &[("JobIDRaw", "x")],
                &[("JobIDRaw", "7.0")],
                &[("JobIDRaw", "7.1")],
                &[("JobIDRaw", "8")],
                &[("JobIDRaw", "7.2")],
            ],
        );
        let (runs, unread) = usage(&text, &separator).unwrap();
        let steps: Vec<usize> = runs.iter().map(|run| run.steps.len()).collect();
        assert_eq!((steps, unread.count), (vec![1, 0], 4));
    }

    #[test]
    fn amounts() {
        for (text, expected) in [
            ("12664832", Some(12_664_832)),
            ("12368K", Some(12_368 << 10)),
            ("1.5M", Some((1 << 20) + (1 << 19))),
            ("1-00:00:01", Some(86_401)),
            ("18446744073709551614", None),
            ("", None),
            ("?", None),
        ] {
            assert_eq!(amount(text), expected, "{text}");
        }
        for (text, expected) in [
            ("00:03.867", Some(3_867)),
            ("2-01:00:00", Some(176_400_000)),
            ("00:00:00", Some(0)),
            ("INVALID", None),
        ] {
            assert_eq!(millis(text), expected, "{text}");
        }
    }
}
