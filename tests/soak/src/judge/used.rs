//! Usage of a run, compared with accounting's own sums.

use mesh_events::Event;

use super::Run;
use crate::plan::Source;
use crate::sacct::Row;
use crate::verdict::Verdict;

/// Compares `job.updated` with the rows of its run: one, or several after a resize.
pub(super) fn judge(
    run: Run,
    parts: &[&Row],
    event: &Event,
    source: Source,
    verdict: &mut Verdict,
) {
    let (Some(first), Some(last)) = (parts.first(), parts.last()) else {
        return;
    };
    let lines = || -> Vec<&str> { parts.iter().map(|row| row.line.as_str()).collect() };
    let job = event.job();
    let Some(usage) = job.and_then(|job| job.usage.as_ref()) else {
        let text = format!("job.updated of {run:?} has no usage; {:?}", lines());
        verdict.wrong.push(text);
        return;
    };
    // Versions count the parts of a resized run differently, and no run here is both resized and suspended.
    let elapsed = match (first.start, last.end) {
        (Some(start), Some(end)) if parts.len() > 1 => u64::try_from(end - start).ok(),
        _ => Some(last.elapsed),
    };
    let exit = job.and_then(|job| job.exit_code.as_ref());
    let exit = exit.map(|exit| (exit.code, exit.signal));
    let cpu = parts.iter().map(|row| row.cpu_millis).sum::<u64>() / 1_000;
    let mut faults = Vec::new();
    if Some(usage.elapsed_seconds) != elapsed {
        faults.push(format!("elapsed is {} s", usage.elapsed_seconds));
    }
    // For a job ended by Slurm, the controller shows the signal, and accounting of 22.05 nothing.
    let has_ended_itself = matches!(last.end_kind(), Some("completed" | "failed"));
    // slurmrestd of 22.05 loses accounting's exit codes. Without one stored from the controller, it is not compared.
    let is_lost = source == Source::Rest && exit.is_none();
    if has_ended_itself && exit != last.exit && !is_lost {
        faults.push(format!("the exit code is {exit:?}"));
    }
    if !usage.incomplete && usage.cpu_seconds != cpu {
        faults.push(format!("it used {} CPU seconds", usage.cpu_seconds));
    }
    if !faults.is_empty() {
        verdict.wrong.push(format!(
            "job.updated of {run:?}: {}; accounting: {:?}",
            faults.join(", "),
            lines()
        ));
        return;
    }
    verdict.right("elapsed and exit code");
    if cpu > 0 && !usage.incomplete {
        verdict.right("CPU seconds");
    }
}
