//! Resource usage of runs: a row of accounting with its steps.
//!
//! - `tres.requested` of a step is what it used and read, `tres.consumed` what it wrote; neither is a request.
//! - A run's own CPU time reads 0 over REST (22.05.8, 24.11.5, 26.05.5). It is the sum of its steps, as sacct computes it.
//! - Microseconds may exceed a second (22.05: `{seconds: 2, microseconds: 1010183}` is 3.01 s).
//! - CPU is in milliseconds in `tres`, where sacct prints seconds.

use serde_json::Value;
use slurm_types::JobState;

use super::{ExitCodes, Fields, accounting};
use crate::record::{StepUsage, TresUsage, UsageRecord};

/// One run; `None` if it has no job id. `uid` looks up the users of this host.
pub(crate) fn usage(
    value: &Value,
    codes: ExitCodes,
    uid: impl Fn(&str) -> Option<u32>,
) -> Option<UsageRecord> {
    let mut record = accounting(value, codes, uid)?;
    let steps = value.get("steps").and_then(Value::as_array);
    let steps: Vec<&Value> = steps.into_iter().flatten().collect();
    let mut micros = [0_u64; 3];
    let mut read = Vec::new();
    for step in steps {
        let mut fields = Fields::new(step);
        for (sum, mode) in micros.iter_mut().zip(["total", "user", "system"]) {
            *sum = sum.saturating_add(cpu_micros(&mut fields, mode));
        }
        read.push(self::step(&mut fields));
        record.oddities.note_within("steps", &fields.oddities);
    }
    let [total, user, system] = micros.map(|micros| Some(micros / 1_000));
    Some(UsageRecord {
        cpu_millis: total,
        user_cpu_millis: user,
        system_cpu_millis: system,
        energy_joules: record.alloc_tres.get("energy").filter(|joules| *joules > 0),
        steps: read,
        record,
    })
}

fn cpu_micros(fields: &mut Fields, mode: &str) -> u64 {
    let seconds: u64 = fields
        .number(&format!("time.{mode}.seconds"))
        .unwrap_or_default();
    let micros = fields
        .number(&format!("time.{mode}.microseconds"))
        .unwrap_or_default();
    seconds.saturating_mul(1_000_000).saturating_add(micros)
}

fn step(fields: &mut Fields) -> StepUsage {
    let max = items(fields, "tres.requested.max");
    let memory = max.iter().find(|item| item.name == "mem");
    let end = fields.time("time.end");
    let strings = fields.strings("state");
    StepUsage {
        id: step_id(fields),
        ended: end.is_some(),
        end,
        state: JobState::from_names(strings.iter().map(String::as_str)).base,
        tasks: fields.number("tasks.count"),
        max_rss_bytes: memory.map(|item| item.amount),
        max_rss_node: memory.map(|item| item.node.clone()).unwrap_or_default(),
        max_rss_task: memory.and_then(|item| item.task),
        total: used(items(fields, "tres.requested.total")),
        max: used(max),
    }
}

/// `"batch"` or 0 (22.05), `"9.batch"` (24.11 and later).
fn step_id(fields: &mut Fields) -> String {
    match fields.get("step.id") {
        Some(Value::Number(number)) => number.to_string(),
        _ => {
            let id = fields.text("step.id");
            id.rsplit_once('.')
                .map_or_else(|| id.clone(), |(_, step)| step.to_owned())
        }
    }
}

/// An amount of a resource, with the node and task that used it.
struct Item {
    name: String,
    amount: u64,
    node: String,
    task: Option<u32>,
}

fn items(fields: &mut Fields, path: &str) -> Vec<Item> {
    let list = fields.get(path).and_then(Value::as_array);
    let mut items = Vec::new();
    for value in list.into_iter().flatten() {
        let mut item = Fields::new(value);
        let name = item.tres_name();
        // Slurm's placeholders for "no value" are at the top of the 64-bit range, or negative.
        let amount = item.signed("count").and_then(|n| u64::try_from(n).ok());
        if let (Some(name), Some(amount)) = (name, amount) {
            let amount = if name == "cpu" {
                amount / 1_000
            } else {
                amount
            };
            items.push(Item {
                name,
                amount,
                node: item.text("node"),
                task: item.number("task"),
            });
        }
        fields.oddities.note_within(path, &item.oddities);
    }
    items
}

fn used(items: Vec<Item>) -> TresUsage {
    items
        .into_iter()
        .map(|item| (item.name, item.amount))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Job 270001 of a 22.05.8, whose sacct printed TotalCPU 00:03.019, UserCPU 00:01.248, SystemCPU 00:01.770, and for step 0
    /// `50085888|n1|1|cpu=00:00:01,energy=0,fs/disk=44118,mem=50085888|cpu=00:00:02,energy=0,mem=100171776`.
    #[test]
    fn steps_as_sacct_prints_them() {
        let item = |kind: &str, name: Option<&str>, count: i64, task: u32| json!({"type": kind, "name": name, "count": count, "task": task, "node": "n1"});
        let time = |end: u32, user: [u32; 2], system: [u32; 2], total: [u32; 2]| {
            let cpu = |[seconds, microseconds]: [u32; 2]| json!({"seconds": seconds, "microseconds": microseconds});
            json!({"end": end, "user": cpu(user), "system": cpu(system), "total": cpu(total)})
        };
        let row = json!({
            "job_id": 270_001,
            "time": {"total": {"seconds": 0, "microseconds": 0}},
            "tres": {"allocated": [{"type": "cpu", "name": null, "count": 2}, {"type": "energy", "name": null, "count": -2}]},
            "steps": [
                {
                    "step": {"job_id": 270_001, "id": "batch"},
                    "time": time(1_795_322_118, [0, 2_762], [0, 6_880], [0, 9_642]),
                    "tasks": {"count": 1},
                    "tres": {"requested": {"max": [], "total": [item("energy", None, 0, 0)]}},
                },
                {
                    "state": "FAILED",
                    "step": {"job_id": 270_001, "id": 0},
                    "time": time(1_795_322_118, [1, 246_201], [1, 763_982], [2, 1_010_183]),
                    "tasks": {"count": 2},
                    "tres": {"requested": {
                        "max": [
                            item("cpu", None, 1_480, 0),
                            item("mem", None, 50_085_888, 1),
                            item("energy", None, 0, 0),
                            item("fs", Some("disk"), 44_118, 1),
                            item("vmem", None, -2, 0),
                        ],
                        "total": [item("cpu", None, 2_880, 0), item("mem", None, 100_171_776, 0)],
                    }},
                },
                {"step": {"id": "270001.extern"}, "time": time(0, [0; 2], [0; 2], [0; 2]), "tres": {"requested": {"max": [], "total": []}}},
            ],
        });
        let run = usage(&row, ExitCodes::Lost, |_| None).unwrap();
        assert_eq!(run.record.oddities.count(), 0);
        let cpu = (run.cpu_millis, run.user_cpu_millis, run.system_cpu_millis);
        assert_eq!(cpu, (Some(3_019), Some(1_248), Some(1_770)));
        assert_eq!(run.energy_joules, None);
        let ids: Vec<&str> = run.steps.iter().map(|step| step.id.as_str()).collect();
        assert_eq!(ids, ["batch", "0", "extern"]);
        let amounts = |items: &[(&str, u64)]| -> TresUsage {
            let items = items.iter();
            items.map(|(name, n)| ((*name).to_owned(), *n)).collect()
        };
        let step = StepUsage {
            id: "0".to_owned(),
            ended: true,
            end: Some(slurm_types::UnixTime::from_secs(1_795_322_118)),
            state: Some(slurm_types::JobBaseState::Failed),
            tasks: Some(2),
            max_rss_bytes: Some(50_085_888),
            max_rss_node: "n1".to_owned(),
            max_rss_task: Some(1),
            max: amounts(&[
                ("cpu", 1),
                ("mem", 50_085_888),
                ("energy", 0),
                ("fs/disk", 44_118),
            ]),
            total: amounts(&[("cpu", 2), ("mem", 100_171_776)]),
        };
        assert_eq!(run.steps[1], step);
        assert!(run.steps[0].ended && run.steps[0].max.is_empty() && !run.steps[2].ended);
    }
}
