//! The pages in the names of other exporters against the commands that those exporters run, on a quiet cluster.

use std::collections::BTreeMap;

use integration::{Cluster, Error, Mesh, Slurm as _};

use crate::metrics::{Samples, agree, page, site};

/// The rows of a command, divided into columns.
async fn rows(cluster: &Cluster, command: &[&str]) -> Result<Vec<Vec<String>>, Error> {
    let text = cluster.ask("root", command).await?;
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let columns = lines.map(|line| {
        line.split('|')
            .map(|column| column.trim().to_owned())
            .collect()
    });
    Ok(columns.collect())
}

fn add(samples: &mut Samples, name: String, value: f64) {
    *samples.entry(name).or_default() += value;
}

fn number(text: &str) -> f64 {
    text.parse()
        .unwrap_or_else(|_| panic!("{text:?} is no number"))
}

/// A page of the mesh with these metrics only.
async fn only(mesh: &Mesh, name: &str, metrics: &[&str]) -> Result<Samples, Error> {
    let mut samples = page(mesh, name).await?;
    samples.retain(|sample, _| {
        let metric = sample.split('{').next().unwrap_or_default();
        metrics.contains(&metric)
    });
    Ok(samples)
}

/// Adds jobs as `squeue --states=all` shows them without the tasks of arrays.
fn queue(rows: &[Vec<String>]) -> Samples {
    let mut slurm = Samples::new();
    for row in rows {
        let [partition, state, cpus, reason, user] = &row[..] else {
            panic!("{row:?}");
        };
        let state = state.to_lowercase();
        let mut labels = format!("user=\"{user}\",partition=\"{partition}\"");
        if state == "pending" {
            labels.push_str(&format!(",reason=\"{reason}\""));
        }
        add(&mut slurm, format!("slurm_queue_{state}{{{labels}}}"), 1.0);
        add(
            &mut slurm,
            format!("slurm_cores_{state}{{{labels}}}"),
            number(cpus),
        );
    }
    slurm
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_other_exporters_have_the_numbers_of_their_commands() {
    let site = site("others").await.unwrap();
    let (cluster, mesh) = (&site.cluster, &site.mesh);
    let reserve = [
        "scontrol",
        "create",
        "reservation",
        "ReservationName=maint1",
        "StartTime=now+1hours",
        "Duration=60",
        "Users=root",
        "Nodes=n1",
        "Flags=MAINT",
    ];
    cluster.ask("root", &reserve).await.unwrap();
    let states = ["pending", "running", "suspended", "failed", "completed"];
    let metrics: Vec<String> = states
        .iter()
        .flat_map(|state| {
            [
                format!("slurm_queue_{state}"),
                format!("slurm_cores_{state}"),
            ]
        })
        .collect();
    let metrics: Vec<&str> = metrics.iter().map(String::as_str).collect();
    agree("sckyzo's queue", async || {
        let command = ["squeue", "-h", "-a", "-t", "all", "-o", "%P|%T|%C|%r|%u"];
        let slurm = queue(&rows(cluster, &command).await?);
        Ok((slurm, only(mesh, "sckyzo", &metrics).await?))
    })
    .await;
    agree("sckyzo's nodes", async || {
        let format = "NodeList:|,AllocMem:|,Memory:|,CPUsState:|,StateLong:|,Partition:|";
        let mut slurm = Samples::new();
        for row in rows(cluster, &["sinfo", "-h", "-a", "-N", "-O", format]).await? {
            let labels = format!(
                "{{node=\"{}\",status=\"{}\",partition=\"{}\"}}",
                row[0],
                row[4],
                row[5].trim_end_matches('*')
            );
            let cpus: Vec<f64> = row[3].split('/').map(number).collect();
            for (name, value) in [
                ("mem_alloc", number(&row[1])),
                ("mem_total", number(&row[2])),
                ("cpu_alloc", cpus[0]),
                ("cpu_idle", cpus[1]),
                ("cpu_other", cpus[2]),
                ("cpu_total", cpus[3]),
            ] {
                slurm.insert(format!("slurm_node_{name}{labels}"), value);
            }
        }
        let names = [
            "slurm_node_mem_alloc",
            "slurm_node_mem_total",
            "slurm_node_cpu_alloc",
            "slurm_node_cpu_idle",
            "slurm_node_cpu_other",
            "slurm_node_cpu_total",
        ];
        let mut ours = only(mesh, "sckyzo", &names).await?;
        // Nodes that are powered down have a suffix in sinfo, and are no part of this.
        slurm.retain(|name, _| !name.contains("node=\"c"));
        ours.retain(|name, _| !name.contains("node=\"c"));
        Ok((slurm, ours))
    })
    .await;
    agree("rivosinc's nodes", async || {
        let mut slurm = Samples::new();
        // Without `-N`, sinfo groups nodes that are alike; each partition has its line.
        for row in rows(
            cluster,
            &["sinfo", "-h", "-a", "-N", "-o", "%N|%t|%P|%w|%m"],
        )
        .await?
        {
            let partition = row[2].trim_end_matches('*');
            let state = row[1].trim_end_matches(['*', '~', '#', '%']);
            let labels = format!("{{partition=\"{partition}\",state=\"{state}\"}}");
            add(
                &mut slurm,
                format!("slurm_partition_node_count{labels}"),
                1.0,
            );
            let labels = format!("{{partition=\"{partition}\"}}");
            add(
                &mut slurm,
                format!("slurm_partition_weight{labels}"),
                number(&row[3]),
            );
            let bytes = number(&row[4]) * 1e6;
            add(
                &mut slurm,
                format!("slurm_partition_real_mem{labels}"),
                bytes,
            );
        }
        let names = [
            "slurm_partition_node_count",
            "slurm_partition_weight",
            "slurm_partition_real_mem",
        ];
        Ok((slurm, only(mesh, "rivosinc", &names).await?))
    })
    .await;
    agree("rivosinc's reasons and states of users", async || {
        let mut slurm = Samples::new();
        let command = ["squeue", "-h", "-a", "-r", "-t", "all", "-o", "%T|%r|%u"];
        for row in rows(cluster, &command).await? {
            if row[0] == "PENDING" {
                let name = format!("slurm_pending_reason_total{{reason=\"{}\"}}", row[1]);
                add(&mut slurm, name, 1.0);
            }
            let labels = format!("{{username=\"{}\",state=\"{}\"}}", row[2], row[0]);
            add(&mut slurm, format!("slurm_user_state_total{labels}"), 1.0);
        }
        let names = ["slurm_pending_reason_total", "slurm_user_state_total"];
        Ok((slurm, only(mesh, "rivosinc", &names).await?))
    })
    .await;
    agree("slinky's jobs and nodes", async || {
        let mut slurm = Samples::new();
        for row in rows(cluster, &["squeue", "-h", "-a", "-t", "all", "-o", "%T|%r"]).await? {
            add(&mut slurm, "slurm_jobs_total".into(), 1.0);
            let state = row[0].to_lowercase();
            add(&mut slurm, format!("slurm_jobs_{state}_total"), 1.0);
            if row[1].starts_with("JobHeld") {
                add(&mut slurm, "slurm_jobs_hold_total".into(), 1.0);
            }
        }
        for line in cluster
            .ask("root", &["scontrol", "-o", "show", "node"])
            .await?
            .lines()
        {
            let value = |key: &str| {
                let found = line
                    .split_whitespace()
                    .find_map(|pair| pair.strip_prefix(key));
                found.unwrap_or_default()
            };
            let labels = format!("{{node=\"{}\"}}", value("NodeName="));
            let memory = number(value("RealMemory="));
            let reserved = value("MemSpecLimit=").parse::<f64>().unwrap_or(0.0);
            let effective = format!("slurm_node_memory_effective_bytes{labels}");
            slurm.insert(effective, memory - reserved);
            let cpus = number(value("CPUAlloc="));
            slurm.insert(format!("slurm_node_cpus_alloc_total{labels}"), cpus);
        }
        let names = [
            "slurm_jobs_total",
            "slurm_jobs_pending_total",
            "slurm_jobs_running_total",
            "slurm_jobs_failed_total",
            "slurm_jobs_hold_total",
            "slurm_node_memory_effective_bytes",
            "slurm_node_cpus_alloc_total",
        ];
        Ok((slurm, only(mesh, "slinky", &names).await?))
    })
    .await;
    agree("soperator's partitions", async || {
        let mut slurm = Samples::new();
        for row in rows(cluster, &["sinfo", "-h", "-a", "-N", "-o", "%N|%R"]).await? {
            let labels = format!("{{node_name=\"{}\",partition=\"{}\"}}", row[0], row[1]);
            slurm.insert(format!("slurm_node_partition{labels}"), 1.0);
        }
        Ok((
            slurm,
            only(mesh, "soperator", &["slurm_node_partition"]).await?,
        ))
    })
    .await;
    opted_in(cluster, mesh).await;
}

/// What is there only because ingest reads statistics and shares.
async fn opted_in(cluster: &Cluster, mesh: &Mesh) {
    agree("figures of sdiag", async || {
        let text = cluster.ask("root", &["sdiag"]).await?;
        let (main, backfill) = text.split_once("Backfilling stats").unwrap();
        let value = |part: &str, label: &str| {
            let line = part
                .lines()
                .find_map(|line| line.trim().strip_prefix(label));
            line.map(|value| number(value.trim()))
        };
        let figures = [
            ("slurm_sdiag_jobs_submitted", value(main, "Jobs submitted:")),
            ("slurm_sdiag_jobs_started", value(main, "Jobs started:")),
            (
                "slurm_slurmdbd_queue_size",
                value(main, "DBD Agent queue size:"),
            ),
            ("slurm_schedule_cycle_cnt", value(main, "Total cycles:")),
            ("slurm_schedule_cycle_last", value(main, "Last cycle:")),
            ("slurm_sched_mean_cycle", value(main, "Mean cycle:")),
            ("slurm_bf_cycle_cnt", value(backfill, "Total cycles:")),
            ("slurm_bf_cycle_max", value(backfill, "Max cycle:")),
            ("slurm_bf_last_depth", value(backfill, "Last depth cycle:")),
            ("slurm_bf_queue_len", value(backfill, "Last queue length:")),
        ];
        let names = figures.map(|(name, _)| name);
        let slurm: Samples = figures
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?)))
            .collect();
        Ok((slurm, only(mesh, "scheduler", &names).await?))
    })
    .await;
    agree("calls of users", async || {
        let text = cluster.ask("root", &["sdiag"]).await?;
        let (_, users) = text.split_once("statistics by user").unwrap();
        let mut slurm = Samples::new();
        // root and slurm go on asking.
        for line in users.lines().filter(|line| line.contains("ave_time")) {
            let user = line.split_whitespace().next().unwrap();
            let (_, count) = line.split_once("count:").unwrap();
            if ["alice", "bob"].contains(&user) {
                let count = count.split_whitespace().next().unwrap();
                slurm.insert(
                    format!("slurm_user_rpc_stats{{user=\"{user}\"}}"),
                    number(count),
                );
            }
        }
        let mut ours = only(mesh, "sckyzo", &["slurm_user_rpc_stats"]).await?;
        ours.retain(|name, _| name.contains("alice") || name.contains("bob"));
        Ok((slurm, ours))
    })
    .await;
    agree("shares", async || {
        let format = "Account,User,RawShares,NormShares,RawUsage,FairShare";
        let mut slurm = Samples::new();
        for row in rows(cluster, &["sshare", "-a", "-n", "-P", "-o", format]).await? {
            if row[1].is_empty() || row[2] == "parent" {
                continue;
            }
            let labels = format!("{{account=\"{}\",user=\"{}\"}}", row[0], row[1]);
            for (name, value) in [
                ("slurm_user_fairshare_norm_shares", &row[3]),
                ("slurm_user_fairshare", &row[5]),
            ] {
                slurm.insert(format!("{name}{labels}"), number(value));
            }
        }
        let names = ["slurm_user_fairshare_norm_shares", "slurm_user_fairshare"];
        Ok((slurm, only(mesh, "sckyzo", &names).await?))
    })
    .await;
    agree("licenses, reservations and limits", async || {
        let mut slurm = BTreeMap::new();
        let licenses = cluster
            .ask("root", &["scontrol", "-o", "show", "licenses"])
            .await?;
        for (key, name) in [("Total=", "total"), ("Used=", "used"), ("Free=", "free")] {
            let mut pairs = licenses.split_whitespace();
            let value = pairs.find_map(|pair| pair.strip_prefix(key)).unwrap();
            let labels = "{license=\"matlab\"}";
            slurm.insert(format!("slurm_license_{name}{labels}"), number(value));
        }
        let command = ["scontrol", "-o", "show", "reservation"];
        let reservation = cluster.ask("root", &command).await?;
        let mut pairs = reservation.split_whitespace();
        let nodes = pairs
            .find_map(|pair| pair.strip_prefix("NodeCnt="))
            .unwrap();
        let labels = "{reservation_name=\"maint1\"}";
        slurm.insert(
            format!("slurm_reservation_node_count{labels}"),
            number(nodes),
        );
        let names = [
            "slurm_license_total",
            "slurm_license_used",
            "slurm_license_free",
            "slurm_reservation_node_count",
        ];
        let mut ours = only(mesh, "sckyzo", &names).await?;
        let format = "format=Account,User,GrpTRES";
        for row in rows(cluster, &["sacctmgr", "-n", "-P", "show", "assoc", format]).await? {
            if let (true, Some(cpus)) = (row[1].is_empty(), row[2].strip_prefix("cpu=")) {
                let name = format!("slurm_account_cpu_limit{{account=\"{}\"}}", row[0]);
                slurm.insert(name, number(cpus.split(',').next().unwrap()));
            }
        }
        ours.extend(only(mesh, "rivosinc", &["slurm_account_cpu_limit"]).await?);
        Ok((slurm, ours))
    })
    .await;
}
