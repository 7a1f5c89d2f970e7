//! Compares the amounts of an answer with Slurm's records: `scontrol show`, `sprio`, `squeue --start`.

use integration::{Cluster, Slurm as _};
use serde_json::Value;

/// True if every blocker of an explanation is as Slurm shows it.
pub async fn agree(cluster: &Cluster, explanation: &Value) -> bool {
    for blocker in explanation["blockers"].as_array().into_iter().flatten() {
        let text = |key: &str| blocker[key].as_str().unwrap_or_default();
        let name = text("name");
        let (have, most) = (text("have"), text("most"));
        let agrees = match text("kind") {
            "limit" => {
                let shown = ask(
                    cluster,
                    &["scontrol", "-o", "show", "assoc_mgr", "flags=qos,assoc"],
                )
                .await;
                // `GrpTRES cpu` is shown as `cpu=2(1)`, `MaxJobsPerUser` as `MaxJobsPU=1(1)`; limits of one job have no use.
                match (have, name.split_once(' ')) {
                    ("", Some((_, tres))) => shown.contains(&format!("{tres}={most}")),
                    ("", None) => shown.contains(&format!("={most}")),
                    (have, Some((_, tres))) => shown.contains(&format!("{tres}={most}({have})")),
                    (have, None) => shown.contains(&format!("={most}({have})")),
                }
            }
            "license" => {
                let shown = ask(cluster, &["scontrol", "-o", "show", "licenses", name]).await;
                shown.contains(&format!("Total={most} Used={have} "))
            }
            "node" => {
                let shown = cluster
                    .run("root", &["scontrol", "-o", "show", "node", name])
                    .await
                    .unwrap();
                let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
                let (state, reason) = text("state")
                    .split_once(": ")
                    .unwrap_or((text("state"), ""));
                let base = state.split('+').next().unwrap_or_default();
                // Slurm 22.05 shows no record of cloud nodes that are powered down.
                let is_hidden = state.is_empty();
                is_hidden
                    || shown.contains(&format!("State={base}"))
                        && shown.contains(&format!("Reason={reason}"))
            }
            "reservation" => {
                let shown = ask(cluster, &["scontrol", "-o", "show", "reservation", name]).await;
                shown.contains(&format!(" Nodes={} ", text("holder")))
            }
            "job" => ask(cluster, &["squeue", "-h", "-j", name, "-o", "%T"]).await == text("state"),
            _ => true,
        };
        if !agrees {
            return false;
        }
    }
    true
}

/// True if the expected start is that of `squeue --start`, and the priority parts are those of `sprio`.
pub async fn plan_and_priority(cluster: &Cluster, job: &str, answer: &Value) -> bool {
    let explanation = &answer["explanation"];
    let plan = ask(cluster, &["squeue", "-h", "--start", "-j", job, "-o", "%S"]).await;
    let expected = explanation["expectedStart"].as_str().unwrap_or_default();
    let parts = ask(cluster, &["sprio", "-h", "-j", job, "-o", "%A %F %P %Q"]).await;
    // One line per partition of the job.
    let parts: Vec<&str> = parts
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    let points = |name: &str| {
        let parts = explanation["priorityParts"]
            .as_array()
            .into_iter()
            .flatten();
        let mut parts = parts.filter(|part| part["name"] == name);
        parts
            .next()
            .and_then(|part| part["points"].as_str())
            .unwrap_or("0")
            .to_owned()
    };
    let found = ["age", "fairshare", "partition", "qos"].map(points);
    !plan.is_empty() && expected.trim_end_matches("+00:00") == plan && parts == found
}

async fn ask(cluster: &Cluster, command: &[&str]) -> String {
    let output = cluster.run("root", command).await.unwrap();
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}
