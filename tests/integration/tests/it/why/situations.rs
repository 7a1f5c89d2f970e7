//! Makes the situations, with the answer that each must get.

use integration::{Cluster, Slurm as _};

use super::{Expected, ask, expected, running, submit};

/// Limits of QOS and accounts: those under which a job can never fit, and those that are in use.
pub async fn limits(cluster: &Cluster) -> Vec<Expected> {
    let mut all = Vec::new();
    // More than allowed at all.
    for (options, text) in [
        (
            ["--qos=memq", "--mem=2000"],
            "QOS memq allows at most 1000 MiB",
        ),
        (["--qos=short", "-t10"], "QOS short allows at most 5 min"),
        (["--qos=onecpu", "-n2"], "QOS onecpu allows at most 1 CPU"),
    ] {
        let job = submit(cluster, &options).await;
        all.push(expected(job, text, "limit", "user", true));
    }
    // As much as allowed, but in use.
    for (options, text) in [
        (
            ["--qos=memq", "--mem=600"].as_slice(),
            "QOS memq has 600 MiB of 1000 MiB in use",
        ),
        (
            &["-p", "partq", "-n", "2"],
            "QOS partq of partition partq has 2 CPUs of 2 CPUs in use",
        ),
        (&["--qos=onejob"], "QOS onejob has 1 job of 1 job in use"),
        (
            &["-A", "tiny", "-n", "2"],
            "Account tiny has 2 CPUs of 2 CPUs in use",
        ),
        (
            &["-p", "gpu", "--qos=gpuq", "--gres=gpu:4"],
            "QOS gpuq has 4 GPUs of 4 GPUs in use",
        ),
    ] {
        let holder = submit(cluster, options).await;
        running(cluster, &holder).await;
        let job = submit(cluster, options).await;
        all.push(expected(job, text, "limit", "wait", false));
    }
    let holder = submit(cluster, &["-L", "matlab:2"]).await;
    running(cluster, &holder).await;
    let job = submit(cluster, &["-L", "matlab:1"]).await;
    all.push(expected(
        job,
        "2 are in use, by 1 job of yours",
        "license",
        "wait",
        false,
    ));
    all
}

/// Requests that no partition of the job admits, or no node satisfies.
pub async fn refused(cluster: &Cluster) -> Vec<Expected> {
    let mut all = Vec::new();
    // An administrator moves them there: some versions refuse such a submission.
    for (options, partition, text, class) in [
        (
            ["-t10"].as_slice(),
            "closed",
            "does not admit account physics, only ml",
            "request",
        ),
        (
            &["-t10"],
            "closedqos",
            "does not admit QOS normal, only high",
            "request",
        ),
        (
            &["-t10"],
            "short",
            "allows at most 5 min (MaxTime)",
            "partition",
        ),
        (
            &["-N2"],
            "single",
            "allows at most 1 node (MaxNodes)",
            "partition",
        ),
        (&["-N2"], "one", "has only 1 node", "request"),
    ] {
        let job = submit(cluster, &[options, &["--hold"]].concat()).await;
        let (id, to) = (format!("jobid={job}"), format!("partition={partition}"));
        let moved = cluster
            .run("root", &["scontrol", "update", &id, &to])
            .await
            .unwrap();
        ask(cluster, &["scontrol", "release", &job]).await;
        if moved.status.success() {
            all.push(expected(job, text, class, "user", true));
        }
    }
    let job = submit(cluster, &["-p", "off"]).await;
    all.push(expected(
        job,
        "is down: it takes jobs but starts none",
        "partition",
        "admin",
        true,
    ));

    // A feature that no node has any more.
    let job = submit(cluster, &["-p", "gpu", "-C", "a100", "--hold"]).await;
    let features = [
        "scontrol",
        "update",
        "nodename=n10,n11",
        "AvailableFeatures=gpu",
        "ActiveFeatures=gpu",
    ];
    ask(cluster, &features).await;
    ask(cluster, &["scontrol", "release", &job]).await;
    all.push(expected(
        job,
        "no node with the feature a100",
        "request",
        "user",
        true,
    ));
    all
}

/// Nodes out of service, and reservations.
pub async fn nodes(cluster: &Cluster) -> Vec<Expected> {
    let mut all = Vec::new();
    ask(
        cluster,
        &[
            "scontrol",
            "update",
            "nodename=n5",
            "state=drain",
            "reason=bad disk",
        ],
    )
    .await;
    ask(
        cluster,
        &[
            "scontrol",
            "update",
            "nodename=n6",
            "state=down",
            "reason=power supply",
        ],
    )
    .await;
    for (options, text) in [
        (
            ["-p", "dead"].as_slice(),
            "n5 is drained (bad disk, by root",
        ),
        (
            &["-p", "broken", "-w", "n6"],
            "n6 is down (power supply, by root",
        ),
        // None of its partitions starts it, for two reasons.
        (&["-p", "off,dead"], "n5 is drained (bad disk, by root"),
    ] {
        let job = submit(cluster, options).await;
        all.push(expected(job, text, "node_unavailable", "admin", true));
    }
    for reservation in [
        [
            "reservation=course",
            "start=now+2hours",
            "nodes=n11",
            "accounts=physics",
            "flags=ignore_jobs",
        ],
        [
            "reservation=works",
            "start=now+20minutes",
            "nodes=n7",
            "users=root",
            "flags=maint,ignore_jobs",
        ],
        [
            "reservation=others",
            "start=now",
            "nodes=n8",
            "users=bob",
            "flags=ignore_jobs",
        ],
    ] {
        let command = [&["scontrol", "create", "duration=60"][..], &reservation].concat();
        ask(cluster, &command).await;
    }
    let job = submit(cluster, &["-p", "gpu", "--reservation=course"]).await;
    all.push(expected(
        job,
        "reservation course begins",
        "reservation",
        "wait",
        false,
    ));
    for (options, text) in [
        (["-p", "maint", "-t60"], "Maintenance (works) takes n7"),
        (["-p", "taken", "-t10"], "A reservation (others) has n8"),
    ] {
        let job = submit(cluster, &options).await;
        all.push(expected(job, text, "node_unavailable", "wait", false));
    }
    all
}

/// Holds, times, dependencies, arrays, preemption.
pub async fn people(cluster: &Cluster) -> Vec<Expected> {
    let mut all = Vec::new();
    let job = submit(cluster, &["--hold"]).await;
    all.push(expected(job, "hold this job", "held", "user", true));
    let job = submit(cluster, &["--hold"]).await;
    ask(cluster, &["scontrol", "hold", &job]).await;
    all.push(expected(job, "An administrator", "held", "admin", true));
    let job = submit(cluster, &["--begin=now+1hour"]).await;
    all.push(expected(
        job,
        "It must not start before",
        "begin_time",
        "wait",
        false,
    ));

    let parent = submit(cluster, &["-J", "chain"]).await;
    running(cluster, &parent).await;
    for dependency in [format!("afterok:{parent}"), "singleton".to_owned()] {
        let text = if dependency == "singleton" {
            "your other jobs of the same name"
        } else {
            "(it runs until"
        };
        let job = submit(cluster, &["-J", "chain", "-d", &dependency]).await;
        all.push(expected(job, text, "dependency", "wait", false));
    }
    let failed = submit(cluster, &["--hold"]).await;
    let job = submit(cluster, &["-d", &format!("afterok:{failed}")]).await;
    ask(cluster, &["scancel", &failed]).await;
    all.push(expected(
        job,
        "",
        "dependency_never_satisfied",
        "user",
        true,
    ));

    let array = submit(cluster, &["--array=1-4%1"]).await;
    running(cluster, &format!("{array}_1")).await;
    all.push(expected(
        array,
        "runs 1 task at a time",
        "limit",
        "wait",
        false,
    ));

    // Preempted by a higher partition: it waits for the node again.
    let lower = submit(cluster, &["-p", "lower", "-n4", "--requeue"]).await;
    running(cluster, &lower).await;
    let upper = submit(cluster, &["-p", "upper", "-n4"]).await;
    running(cluster, &upper).await;
    all.push(expected(
        lower,
        "node is in use",
        "waiting_turn",
        "wait",
        false,
    ));
    all
}
