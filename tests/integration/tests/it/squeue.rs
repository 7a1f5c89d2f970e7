//! `smesh squeue` prints what squeue prints, byte by byte, without asking slurmctld; and runs squeue where it does not know.

use std::process::Output;
use std::time::{Duration, Instant};

use integration::{Cluster, ClusterOptions, Error, Mesh, MeshOptions, Slurm as _, wait_for};

const PATIENCE: Duration = Duration::from_secs(60);
/// OnDemand's fields (ood_core, adapters/slurm.rb).
const ONDEMAND: &str = "%a;%A;%B;%c;%C;%d;%D;%e;%E;%f;%F;%g;%G;%h;%H;%i;%I;%j;%J;%k;%K;%l;%L;%m;%M;%n;%N;%o;%O;%q;%P;%Q;%r;%S;%t;%T;%u;%U;%v;%V;%w;%W;%x;%X;%y;%Y;%z;%Z";
/// Fields of `--Format` that have a letter.
const LONG: &str = "account:,arrayjobid:;,arraytaskid:;,batchhost:;,command:;,comment:;,contiguous:;,cores:;,corespec:;,dependency:;,endtime:;,feature:;,gres:;,groupid:;,groupname:;,jobarrayid:;,jobid:;,licenses:;,mincpus:;,minmemory:;,mintmpdisk:;,name:;,nice:;,nodelist:;,numcpus:;,numnodes:;,oversubscribe:;,partition:;,priority:;,prioritylong:;,qos:;,reason:;,reasonlist:;,reqnodes:;,reservation:;,schednodes:;,sct:;,shared:;,sockets:;,starttime:;,state:;,statecompact:;,submittime:;,threads:;,timeleft:;,timelimit:;,timeused:;,tres-per-node:;,userid:;,username:;,wckey:;,workdir:;";
/// Polls of each kind that are counted.
const POLLS: u64 = 100;

#[tokio::test(flavor = "multi_thread")]
async fn pollers_get_the_bytes_of_squeue_without_asking_slurmctld() {
    let cluster = Cluster::start(&ClusterOptions::small("poll"))
        .await
        .unwrap();
    let options = MeshOptions {
        overlay:
            "[ingest]\nlist_interval = \"500ms\"\n[pending-explainer]\npoll_interval = \"200ms\"\n"
                .to_owned(),
        ..MeshOptions::default()
    };
    let mut mesh = Mesh::set_up(&cluster, "mesh", &options).await.unwrap();
    mesh.start().await.unwrap();
    let array = submit(&cluster, &["--array=1-6%2", "-J", "poll-1"]).await;
    let components = [
        "--hold",
        "-n1",
        "--mem=10",
        "--wrap=true",
        ":",
        "-n1",
        "--mem=10",
    ];
    let sbatch = ["sbatch", "--parsable", "--chdir=/tmp", "--output=/dev/null"];
    let sbatch = [&sbatch[..], &components].concat();
    let het = cluster.ask("alice", &sbatch).await.unwrap();
    let held = submit(
        &cluster,
        &["--hold", "-J", "a long name, with \u{1f} in it"],
    )
    .await;
    submit(&cluster, &["--dependency", &format!("afterok:{held}")]).await;
    submit(
        &cluster,
        &["--begin=now+2days", "--comment=x|y;z", "-t", "1-00:00:00"],
    )
    .await;
    let short = cluster.submit("alice", &["-n1"], "true").await.unwrap();
    let short = short.to_string();
    let ended = cluster.wait_state(&short, &["COMPLETED"], PATIENCE);
    ended.await.unwrap();

    let jobs = format!("{array},{held},{short}");
    let commands: &[&[&str]] = &[
        &[],
        &["--noheader", "-o", "%i %t", "-t", "all"],
        &["--noheader", "-o", "%i %t", "-t", "all", "-u", "alice"],
        &[
            "--format=%i|%T",
            "--states=all",
            "--noheader",
            "--name",
            "poll-1",
        ],
        &["--noheader", "--format=%i %t", "--job", &jobs],
        &["-h", "--format", "%i %t %M", "-t", "PD,R"],
        &["-o", "%.10i|%10u|%.3j|%3j|%.40R", "-A", "physics"],
        &["-o", "%.10i|%10u|%.3j|%3j|%.40R|%r"],
        &["-j", &het, "-o", "%i %A %F %K %T"],
        &["--all", "--states=all", "--noconvert", "-o", ONDEMAND],
        &["--all", "--states=all", "--noconvert", "-O", LONG],
        &["-O", "JobArrayID:.30,State,Name:.8|,TimeUsed,Partition:4"],
        &[
            "--noheader",
            "--Format=jobid,statecompact,username,workdir",
            "-t",
            "all",
        ],
    ];
    for command in commands {
        let mut last = (Vec::new(), Vec::new());
        let same = wait_for("both print the same", PATIENCE, async || {
            let theirs = cluster
                .run("root", &[&["squeue"], *command].concat())
                .await?;
            let own = ours(&cluster, &mesh, command).await?;
            last = (theirs.stdout, own.stdout);
            let is_same = !last.0.is_empty() && last.0 == last.1;
            Ok::<_, Error>((is_same || theirs.status.code() != Some(0)).then_some(()))
        });
        if let Err(error) = same.await {
            let [theirs, own] = [&last.0, &last.1].map(|text| String::from_utf8_lossy(text));
            panic!("{error}: {command:?}\nsqueue:\n{theirs}\nsmesh squeue:\n{own}");
        }
    }

    // A job that is not in the list is never as if it had ended.
    let unknown = ours(&cluster, &mesh, &["-h", "-j", "999999"])
        .await
        .unwrap();
    assert!(!unknown.status.success(), "{unknown:?}");
    let asked = mesh.smesh(&["squeue", "-h", "-j", "999999"]).await.unwrap();
    let theirs = cluster.run("root", &["squeue", "-h", "-j", "999999"]);
    let theirs = theirs.await.unwrap();
    assert_eq!(
        (asked.status.code(), asked.stdout),
        (theirs.status.code(), theirs.stdout)
    );

    let before = requests(&cluster).await;
    let began = Instant::now();
    // Where the list is too old or takes too long, squeue would be run, and there is none.
    let mut answered = 0;
    while answered < POLLS {
        let polled = ours(
            &cluster,
            &mesh,
            &["-h", "-o", "%i %t", "-t", "all", "-u", "alice"],
        );
        answered += u64::from(polled.await.unwrap().status.success());
        assert!(
            began.elapsed() < 10 * PATIENCE,
            "{answered} of {POLLS} answered"
        );
    }
    let (took, with) = (began.elapsed(), requests(&cluster).await - before);
    let before = requests(&cluster).await;
    let began = Instant::now();
    for _ in 0..POLLS {
        let polled = ["squeue", "-h", "-o", "%i %t", "-t", "all", "-u", "alice"];
        cluster.run("root", &polled).await.unwrap();
    }
    let (took_without, without) = (began.elapsed(), requests(&cluster).await - before);
    println!(
        "{POLLS} polls: {with} requests in {took:?} with, {without} in {took_without:?} without"
    );
    // What is left are ingest's own, which do not depend on the number of pollers.
    assert!(without >= POLLS && with * 2 < without);

    // Without the mesh, squeue answers.
    mesh.stop().await.unwrap();
    let asked = mesh.smesh(&["squeue", "-h", "-o", "%i"]).await.unwrap();
    let theirs = cluster.run("root", &["squeue", "-h", "-o", "%i"]).await;
    assert_eq!(asked.stdout, theirs.unwrap().stdout);
}

async fn submit(cluster: &Cluster, options: &[&str]) -> String {
    let options = [&["--mem=10", "-t10"][..], options].concat();
    let job = cluster.submit("alice", &options, "sleep 900").await;
    job.unwrap().to_string()
}

/// `smesh squeue` where there is no squeue that it could run.
async fn ours(cluster: &Cluster, mesh: &Mesh, arguments: &[&str]) -> Result<Output, Error> {
    let config = cluster.path("without-squeue.toml");
    let text = std::fs::read_to_string(mesh.config()).unwrap();
    let commands = cluster.commands().display().to_string();
    std::fs::write(&config, text.replace(&commands, "/nowhere")).unwrap();
    let mut command = mesh.command();
    command.env("MESH_CONFIG", config).env("PATH", "/nowhere");
    let output = command.arg("squeue").args(arguments).output().await;
    Ok(output.unwrap())
}

/// How often slurmctld was asked for jobs.
async fn requests(cluster: &Cluster) -> u64 {
    let text = cluster.ask("root", &["sdiag"]).await.unwrap();
    let counts = text.lines().filter_map(|line| {
        let (name, rest) = line.trim().split_once('(')?;
        let count = rest.split_once("count:")?.1;
        let count = count.split_whitespace().next()?.parse::<u64>().ok()?;
        name.trim().starts_with("REQUEST_JOB").then_some(count)
    });
    counts.sum()
}
