//! `smesh when`, and `smesh why ID --if`: when a job may start with another request.

use std::process::{ExitCode, Stdio};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::cli::{self, Global, Request};
use crate::client::segment;
use crate::error::Error;
use crate::{settings, show};

/// Longest time for `sbatch --test-only`.
const SBATCH_TIMEOUT: Duration = Duration::from_secs(60);

/// `smesh when`
pub(super) async fn when(global: &Global, args: &cli::When) -> Result<ExitCode, Error> {
    let requests = &args.requests;
    if !requests.base.contains_key("partition") || !requests.base.contains_key("time_limit_minutes")
    {
        return Err(Error::Usage("when needs --partition and --time".to_owned()));
    }
    let cluster = settings::cluster(global)?;
    let path = format!("/v1/queue/{}/what-if", segment(&cluster));
    let body = json!({"request": requests.base, "variants": requests.variants});
    let mut answer = ask(global, &path, &body).await?;
    if args.verify {
        let amounts = ["cpus", "memory_mib", "gpus"];
        let is_whole = !amounts.iter().any(|name| requests.base.contains_key(*name));
        answer["verified"] = verify(&answer["request"], &Request::new(), is_whole).await?;
    }
    if global.json {
        show::line(&answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    show::line(show::bold("Such a job, submitted now"))?;
    show_answer(&answer)
}

/// `smesh why ID --if …`
pub(super) async fn why(global: &Global, args: &cli::Why) -> Result<ExitCode, Error> {
    let requests = &args.requests;
    if !requests.base.is_empty() || requests.variants.iter().any(Request::is_empty) {
        return Err(Error::Usage(
            "what is different goes after --if: smesh why ID --if --time 2h".to_owned(),
        ));
    }
    if args.verify && requests.variants.len() != 1 {
        return Err(Error::Usage("--verify needs one --if".to_owned()));
    }
    let cluster = settings::cluster(global)?;
    let job = segment(&args.job.to_string());
    let path = format!("/v1/queue/{}/{job}/what-if", segment(&cluster));
    let body = json!({"variants": requests.variants});
    let mut answer = ask(global, &path, &body).await?;
    if args.verify {
        answer["verified"] = verify(&answer["request"], &requests.variants[0], false).await?;
    }
    if global.json {
        show::line(&answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    let job = show::clean(answer["job"].as_str().unwrap_or_default());
    show::line(show::bold(&format!(
        "Job {job}, if its request were different"
    )))?;
    show_answer(&answer)
}

async fn ask(global: &Global, path: &str, body: &Value) -> Result<Value, Error> {
    let client = settings::client(global)?;
    client.send_json(Method::POST, path, Some(body), &[]).await
}

fn show_answer(answer: &Value) -> Result<ExitCode, Error> {
    let text = |value: &Value| show::clean(value.as_str().unwrap_or_default());
    let refused = text(&answer["refused"]);
    let as_it_is = match estimate(&answer["estimate"]) {
        _ if !refused.is_empty() => refused,
        Some((_, estimate)) => format!("likely start {estimate}"),
        None => "no estimate yet".to_owned(),
    };
    show::line(format!("  as it is: {as_it_is}"))?;
    for variant in answer["variants"].as_array().into_iter().flatten() {
        let changes = variant["change"].as_object().into_iter().flatten();
        let changes: Vec<String> = changes.map(|(name, value)| change(name, value)).collect();
        show::line(format!(
            "  {}: {}",
            changes.join(", "),
            text(&variant["summary"])
        ))?;
    }
    if let Some(verified) = answer["verified"].as_str() {
        show::line(format!("  sbatch --test-only: {}", show::clean(verified)))?;
    }
    let as_of = show::time(&answer["queue_as_of"]);
    show::line(format!("  As of {as_of}. {}", text(&answer["note"])))?;
    Ok(ExitCode::SUCCESS)
}

/// When it may start, and how often that was right.
pub(super) fn estimate(estimate: &Value) -> Option<(&'static str, String)> {
    let time = |key: &str| {
        let time = estimate[key].as_str().and_then(|time| time.parse().ok());
        time.map(|time| show::clock(Some(time)))
    };
    let p90 = time("start_p90")?;
    let calibration = &estimate["calibration"];
    let covered = calibration["covered_p90"].as_f64();
    // Where fewer than 8 of 10 started in time, "9 of 10" would be a lie.
    let share = if covered.is_some_and(|covered| covered < 80.0) {
        "usually"
    } else {
        "9 of 10 such jobs"
    };
    let early = time("start_p10").map_or_else(String::new, |p10| format!(", 1 of 10 before {p10}"));
    let mut text = match time("start_p50") {
        Some(p50) => format!("{p50}; {share} by {p90}{early}"),
        None => format!("{share} by {p90}"),
    };
    if let Some(covered) = covered {
        text += &format!(" (right for {covered:.0} % of the last ones)");
    }
    let note = show::clean(estimate["note"].as_str().unwrap_or_default());
    if !note.is_empty() {
        text += &format!("; {note}");
    }
    Some(("Likely start", text))
}

fn change(name: &str, value: &Value) -> String {
    let value = show::clean(&show::value(value));
    match name {
        "time_limit_minutes" => {
            let minutes = value.parse().unwrap_or(0);
            let text = humantime::format_duration(Duration::from_secs(60 * minutes));
            format!("time {text}")
        }
        "memory_mib" => format!("memory {value} MiB"),
        name => format!("{name} {value}"),
    }
}

/// Asks Slurm once what it would plan for the request, as the present user.
async fn verify(request: &Value, change: &Request, is_whole: bool) -> Result<Value, Error> {
    let mut request = request.as_object().cloned().unwrap_or_default();
    request.extend(change.clone());
    let mut command = Command::new("sbatch");
    command
        .args(arguments(&request, is_whole))
        .kill_on_drop(true);
    command.stdin(Stdio::null());
    let output = tokio::time::timeout(SBATCH_TIMEOUT, command.output()).await;
    let output = output
        .map_err(|_| Error::Failed("sbatch --test-only: no answer within a minute".to_owned()))?
        .map_err(|source| Error::io("run", "sbatch", source))?;
    let text = String::from_utf8_lossy(&output.stderr);
    let lines = text.lines().map(|line| line.trim_start_matches("sbatch: "));
    let lines: Vec<&str> = lines.filter(|line| !line.trim().is_empty()).collect();
    Ok(lines.join(" ").into())
}

fn arguments(request: &Request, is_whole: bool) -> Vec<String> {
    let number = |name: &str| request.get(name).and_then(Value::as_u64);
    let text = |name: &str| request.get(name).and_then(Value::as_str);
    let mut arguments = vec!["--test-only".to_owned(), "--wrap=true".to_owned()];
    let mut push = |option: &str, value: Option<String>| {
        arguments.extend(value.map(|value| format!("--{option}={value}")));
    };
    let nodes = number("nodes").unwrap_or(1).max(1);
    push(
        "time",
        number("time_limit_minutes").map(|minutes| minutes.to_string()),
    );
    push("partition", text("partition").map(str::to_owned));
    push("account", text("account").map(str::to_owned));
    push("qos", text("qos").map(str::to_owned));
    push("nodes", Some(nodes.to_string()));
    if is_whole {
        arguments.push("--exclusive".to_owned());
        return arguments;
    }
    push("ntasks", number("cpus").map(|cpus| cpus.to_string()));
    push(
        "mem",
        number("memory_mib").map(|mib| format!("{}M", mib.div_ceil(nodes))),
    );
    push("gpus", number("gpus").map(|gpus| gpus.to_string()));
    arguments
}
