//! Memory of ingest with a long queue: it holds neither Slurm's whole answers nor all facts derived from them.
//!
//! Ingest runs as a separate process, because its peak is measured. Slurm's answers are generated, since such a queue would keep slurmctld
//! busy on a small machine.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use futures_util::TryStreamExt as _;
use mesh_events::catalogue::SLURM_EVENTS;
use mesh_testkit::{NatsServer, script, wait_for};

use crate::mesh::DEADLINE;

const FEW: u32 = 500;
const MANY: u32 = 16_000;
/// Maximum bytes per additional job at the peak. Its row, record and event as values would take more than 5,000 bytes, and squeue and
/// scontrol print 1,300.
const MAX_PER_JOB: u64 = 2_500;

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Process {
    /// Returns a field of its `/proc` status, in bytes.
    fn status(&self, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        kib * 1_024
    }
}

/// Generates a queue with this number of jobs in a folder, from which the commands answer.
fn show(folder: &Path, name: &str, jobs: u32, running: bool) {
    let (mut queue, mut records) = (String::new(), String::new());
    let (state, reason, nodes, start, end) = match running {
        true => ("RUNNING", "None", "n1", "1795305133", "1795305733"),
        false => ("PENDING", "Resources", "", "N/A", "N/A"),
    };
    for id in 1..=jobs {
        let id = &id.to_string();
        let columns = [
            id,
            id,
            id,
            "N/A",
            state,
            "1795305073",
            start,
            end,
            "1010",
            "cpu",
            "alice",
            "20001",
            "physics",
            "normal",
            nodes,
            "1",
            "1",
            "10:00",
            reason,
        ];
        writeln!(queue, "{}", columns.join("\x1f")).unwrap();
        let time = |time: &str| time.replace("N/A", "Unknown");
        writeln!(
            records,
            "JobId={id} JobName=train UserId=alice(20001) GroupId=alice(20001) Priority=1010 Account=physics QOS=normal JobState={state} \
             Reason={reason} Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 ExitCode=0:0 TimeLimit=00:10:00 SubmitTime=1795305073 \
             EligibleTime=1795305073 StartTime={} EndTime={} SuspendTime=None SecsPreSuspend=0 Partition=cpu NodeList={nodes} NumNodes=1 \
             NumCPUs=1 TRES=cpu=1,mem=100M,node=1,billing=1 Features=(null) OverSubscribe=OK Licenses=(null) Network=(null) \
             Command=/home/alice/run-{id}.sh WorkDir=/home/alice StdErr=/home/alice/{id}.err StdIn=/dev/null StdOut=/home/alice/{id}.out Power={}",
            time(start),
            time(end),
            "x".repeat(600)
        )
        .unwrap();
    }
    let of_it = folder.join(name);
    fs::create_dir(&of_it).unwrap();
    fs::write(of_it.join("queue"), queue).unwrap();
    fs::write(of_it.join("records"), records).unwrap();
    symlink(name, folder.join("new")).unwrap();
    fs::rename(folder.join("new"), folder.join("now")).unwrap();
}

fn commands(folder: &Path) {
    let here = folder.display();
    let squeue = format!(
        "for format; do :; done\nfor word; do [ \"$last\" != -o ] || format=$word; last=$word; done\n\
         case \"$format\" in *%i*) exec cat {here}/now/queue ;; esac\n\
         s=${{format#%A}}; s=${{s%%%U*}}\n\
         exec awk -F '\\037' -v s=\"$s\" '{{ print $1 s 20001 s \"(null)\" s \"/home/alice/run-\" $1 \".sh\" s \"/home/alice\" s \"train\" }}' {here}/now/queue"
    );
    let scontrol = format!(
        "case \"$*\" in\n*ping*) echo 'Slurmctld(primary) at n1 is UP' ;;\n*'show jobs') exec cat {here}/now/records ;;\n\
         *) exec grep \"^JobId=$5 \" {here}/now/records ;;\nesac"
    );
    script(&folder.join("squeue"), &squeue);
    script(&folder.join("scontrol"), &scontrol);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_queue_that_changes_at_once_is_not_held() {
    let nats = NatsServer::start().await;
    let folder = tempfile::tempdir().unwrap();
    commands(folder.path());
    show(folder.path(), "few", FEW, false);
    let config = folder.path().join("mesh.toml");
    let text = format!(
        "[mesh]\ncluster = \"testbed\"\ndata_dir = {0:?}\n[mesh.nats]\nurl = \"{1}\"\n[slurm]\nconf = \"/dev/null\"\nbin_dir = {0:?}\n\
         command_timeout = \"60s\"\n[ingest]\naccounting = false\npoll_interval = \"500ms\"\nmax_poll_interval = \"500ms\"\n",
        folder.path(),
        nats.url()
    );
    fs::write(&config, text).unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_ingest"))
        .arg("--config")
        .arg(&config)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let ingest = Process(child.unwrap());
    let client = async_nats::connect(nats.url()).await.unwrap();
    let jetstream = async_nats::jetstream::new(client);
    let published = async |kind: &str, jobs: u32| {
        wait_for(kind, 4 * DEADLINE, async || {
            let stream = jetstream.get_stream(SLURM_EVENTS).await.ok()?;
            let subjects = stream.info_with_subjects(format!("slurm.testbed.job.{kind}.>"));
            let counts: Vec<(String, usize)> = subjects.await.ok()?.try_collect().await.ok()?;
            let count: usize = counts.iter().map(|(_, count)| count).sum();
            (count == jobs as usize).then_some(())
        })
        .await;
    };
    published("baseline", FEW).await;
    let environment = fs::read(format!("/proc/{}/environ", ingest.0.id())).unwrap();
    let environment = String::from_utf8_lossy(&environment).into_owned();
    assert!(environment.contains("MALLOC_ARENA_MAX=1"));
    // Resets the peak.
    fs::write(format!("/proc/{}/clear_refs", ingest.0.id()), "5").unwrap();
    let before = ingest.status("VmRSS");
    show(folder.path(), "many", MANY, false);
    published("submitted", MANY - FEW).await;
    show(folder.path(), "running", MANY, true);
    published("started", MANY).await;
    let per_job = ingest.status("VmHWM").saturating_sub(before) / u64::from(MANY - FEW);
    assert!(per_job <= MAX_PER_JOB, "{per_job} bytes per job");
}
