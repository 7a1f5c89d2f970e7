//! The notation of `docs/reference/job-events.md`: an observation as text.

use mesh_events::RunKey;
use slurm_client::{
    AccountingRecord, ArrayPosition, ArrayTasks, JobRecord, StepUsage, UsageRecord,
};
use slurm_types::{JobId, JobState, TaskSet, UnixTime};

use super::super::{
    Evidence, Fact, FactId, Observation, ObservationContext, Returned, RunStore, fold, usages,
};
use mesh_events::proto::mesh::hook::v1::Doorbell;

/// One step of a row.
pub enum Step {
    /// Observations, in order.
    See(Vec<Observation>, ObservationContext),
    /// Resolves the tasks that left the array.
    Settle {
        removed: bool,
        given_up: Option<TaskSet>,
    },
}

#[derive(Default)]
struct Tokens<'a>(Vec<&'a str>);

impl<'a> Tokens<'a> {
    fn has(&self, token: &str) -> bool {
        self.0.contains(&token)
    }

    fn value(&self, key: &str) -> Option<&'a str> {
        self.0
            .iter()
            .find_map(|token| token.strip_prefix(key)?.strip_prefix('='))
    }

    fn number(&self, key: &str) -> Option<i64> {
        self.value(key).map(|value| {
            value
                .parse()
                .unwrap_or_else(|_| panic!("{key}={value} is no number"))
        })
    }

    fn nodes(&self) -> String {
        self.0
            .iter()
            .find(|token| token.starts_with('n') && token[1..].parse::<u32>().is_ok())
            .map_or_else(String::new, ToString::to_string)
    }
}

/// Times are relative to this, so that none is 0, which Slurm uses for "not set".
pub const EPOCH: i64 = 1_000_000;

pub fn step(text: &str, poll: u64) -> Step {
    let (source, body) = match text.split_once(": ") {
        Some((source, body)) => (source.trim(), body),
        None => ("controller", text),
    };
    let all = Tokens(body.split_ascii_whitespace().collect());
    if all.has("settle") {
        return Step::Settle {
            removed: all.has("gone"),
            given_up: all.value("given-up").map(|tasks| tasks.parse().unwrap()),
        };
    }
    let seconds = i64::try_from(poll).unwrap() + all.number("later").unwrap_or(0);
    let context = ObservationContext {
        now: EPOCH + 100_000 + seconds,
        poll: (source == "controller").then_some(poll),
        first_start: all.has("first"),
        given_up: all.has("given-up"),
        inferred: false,
        restarted: all.has("restarted"),
    };
    let observations = match source {
        "sacct" => accounted(body),
        "jobcomp" => vec![*Evidence::read("c", &doorbell(&all)).unwrap().end.unwrap()],
        "controller" | "bell" => {
            let mut observation = Observation::from_controller("c", &controller(&all)).unwrap();
            if all.has("later-component") {
                observation.returned = Returned::Possibly;
            }
            vec![observation]
        }
        other => panic!("unknown source {other}"),
    };
    Step::See(observations, context)
}

/// Accounting's answer, with the steps of every row if one row has them.
fn accounted(body: &str) -> Vec<Observation> {
    let rows: Vec<Tokens<'_>> = body
        .split('&')
        .map(|row| Tokens(row.split_ascii_whitespace().collect()))
        .collect();
    let batch = |row: &Tokens<'_>| {
        let (state, end) = row.value("batch")?.split_once('@')?;
        Some(StepUsage {
            id: "batch".to_owned(),
            state: JobState::parse(state).base,
            end: Some(UnixTime::from_secs(EPOCH + end.parse::<i64>().unwrap())),
            ..StepUsage::default()
        })
    };
    let has_batch = rows.iter().any(|row| batch(row).is_some());
    if !has_batch && !rows.iter().any(|row| row.has("used")) {
        let rows: Vec<AccountingRecord> = rows.iter().map(accounting).collect();
        return fold("c", &rows);
    }
    let record = |row: &Tokens<'_>| UsageRecord {
        record: accounting(row),
        steps: vec![batch(row).unwrap_or_default()],
        ..UsageRecord::default()
    };
    let rows: Vec<UsageRecord> = rows.iter().map(record).collect();
    let settled = usages("c", &rows).into_iter();
    let runs = settled.map(|settled| settled.observation);
    if !has_batch {
        return runs.collect();
    }
    // A lookup of the end rather than of usage, without another source in time.
    runs.map(|mut run| {
        run.job.usage = None;
        match run.own_end {
            Some(own) if own.is_before_requeue(&run) => run.with_own_end(),
            _ => run,
        }
    })
    .collect()
}

fn time(tokens: &Tokens<'_>, key: &str) -> Option<UnixTime> {
    tokens
        .number(key)
        .map(|secs| UnixTime::from_secs(EPOCH + secs))
}

fn start(tokens: &Tokens<'_>) -> Option<UnixTime> {
    let has_one = !tokens.nodes().is_empty() && !tokens.has("no-start");
    let default = has_one.then(|| UnixTime::from_secs(EPOCH + 10));
    time(tokens, "start").or(default)
}

fn submit(tokens: &Tokens<'_>) -> Option<UnixTime> {
    Some(UnixTime::from_secs(
        EPOCH + tokens.number("submit").unwrap_or(0),
    ))
}

fn id(tokens: &Tokens<'_>) -> Option<JobId> {
    JobId::new(u32::try_from(tokens.number("id").unwrap_or(9)).unwrap())
}

fn tasks(tokens: &Tokens<'_>) -> Option<ArrayTasks> {
    tokens
        .value("task")
        .or(tokens.value("tasks"))
        .and_then(ArrayTasks::parse)
}

fn controller(tokens: &Tokens<'_>) -> JobRecord {
    let tasks = tasks(tokens);
    JobRecord {
        job_id: id(tokens),
        array_job_id: tasks.is_some().then(|| JobId::new(9).unwrap()),
        array_tasks: tasks,
        state: JobState::parse(tokens.0[0]),
        reason: tokens.value("reason").unwrap_or("None").to_owned(),
        priority: Some(u32::from(!tokens.has("held"))),
        restarts: u32::try_from(tokens.number("restarts").unwrap_or(0)).unwrap(),
        submit: submit(tokens),
        start: start(tokens),
        end: time(tokens, "end"),
        suspend_time: time(tokens, "suspend"),
        resize_time: time(tokens, "resize"),
        pre_suspend_secs: tokens.number("ran").map(|ran| u64::try_from(ran).unwrap()),
        nodes: tokens.nodes(),
        ..JobRecord::default()
    }
}

fn accounting(tokens: &Tokens<'_>) -> AccountingRecord {
    AccountingRecord {
        job_id: id(tokens),
        array: tasks(tokens).map(|tasks| ArrayPosition {
            array_job_id: JobId::new(9).unwrap(),
            tasks,
        }),
        state: JobState::parse(tokens.0[0]),
        submit: submit(tokens),
        start: start(tokens),
        end: time(tokens, "end"),
        nodes: tokens.nodes(),
        provisional: tokens.has("provisional"),
        ..AccountingRecord::default()
    }
}

fn doorbell(tokens: &Tokens<'_>) -> Doorbell {
    let text =
        |time: Option<UnixTime>| time.map_or_else(|| "0".to_owned(), |time| time.to_string());
    let task = tokens
        .value("task")
        .map_or_else(|| "4294967294".to_owned(), str::to_owned);
    let array = if tokens.value("task").is_some() {
        "9"
    } else {
        "0"
    };
    let id = id(tokens).unwrap();
    let environment = [
        ("JOBID", id.to_string()),
        ("JOBSTATE", tokens.0[0].to_owned()),
        ("ARRAYJOBID", array.to_owned()),
        ("ARRAYTASKID", task),
        ("SUBMIT", text(submit(tokens))),
        ("START", text(start(tokens))),
        ("END", text(time(tokens, "end"))),
        ("NODES", tokens.nodes()),
    ];
    Doorbell {
        hook: "JobComp".to_owned(),
        cluster: "c".to_owned(),
        job_id: id.get(),
        environment: environment
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
        ..Doorbell::default()
    }
}

/// A fact in the table's notation.
pub fn fact_name(fact: &Fact) -> String {
    let RunKey {
        task_id,
        submit_time,
        attempt,
        ..
    } = &fact.run;
    let mut text = task_id.map(|task| format!("{task}:")).unwrap_or_default();
    text.push_str(if fact.inferred { "~" } else { "" });
    text.push_str(fact.kind.event());
    if !matches!(fact.id, FactId::Correction(..)) && (*submit_time != EPOCH || *attempt > 0) {
        text.push_str(&format!("@{}", submit_time - EPOCH));
        if *attempt > 0 {
            text.push_str(&format!("/{attempt}"));
        }
    }
    if let Some(allocation) = &fact.allocation {
        text.push_str(&format!("({})", allocation.nodes));
    }
    if !fact.array_tasks.is_empty() {
        text.push_str(&format!("[{}]", fact.array_tasks));
    }
    if let Some(continues) = &fact.continues {
        text.push_str(&format!("<{}", continues.cause));
    }
    text
}

/// Applies a step and returns its facts.
pub fn apply(run_store: &mut RunStore, step: Step) -> Vec<Fact> {
    let mut facts = Vec::new();
    match step {
        Step::See(observations, context) => {
            for observation in observations {
                let decision = super::super::observe(run_store, &observation, &context);
                for (run, tracked) in decision.changes {
                    run_store.put(run, tracked);
                }
                facts.extend(decision.facts);
            }
        }
        Step::Settle { removed, given_up } => {
            let array = run_store
                .iter()
                .find(|(_, tracked)| tracked.is_array)
                .map(|(run, _)| run.clone())
                .unwrap();
            use super::super::DepartedTasks;
            match super::super::resolve_departed_tasks(
                run_store,
                &array,
                removed,
                given_up.as_ref(),
                EPOCH + 999,
            ) {
                Some(DepartedTasks::Settled(next) | DepartedTasks::Missing(next)) => {
                    run_store.put(array, *next)
                }
                Some(DepartedTasks::Cancelled(next, fact)) => {
                    run_store.put(array, *next);
                    facts.push(*fact);
                }
                None => {}
            }
        }
    }
    facts
}
