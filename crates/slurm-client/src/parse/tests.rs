//! Output of real clusters of three versions, and hostile text.

mod captured;

use std::collections::HashMap;

use proptest::prelude::*;
use slurm_types::{JobBaseState, JobId, UnixTime};

use self::captured::job_capture;
use super::*;

/// A record as 22.05.8 prints it, with this name and this comment.
fn record(id: u32, name: &str, comment: &str) -> String {
    format!(
        "JobId={id} JobName={name} UserId=alice(20001) GroupId=alice(20001) MCS_label=N/A Priority=1010 Nice=0 Account=physics \
         QOS=normal JobState=PENDING Reason=Resources Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 ExitCode=0:0 \
         RunTime=00:00:00 TimeLimit=00:10:00 SubmitTime=1795305073 StartTime=Unknown EndTime=Unknown Partition=cpu NodeList= \
         NumNodes=1 NumCPUs=1 NumTasks=1 TRES=cpu=1,mem=100M,node=1,billing=1 OverSubscribe=OK Contiguous=0 Licenses=(null) \
         Network=(null) Command=(null) WorkDir=/tmp Comment={comment} StdErr=/dev/null StdIn=/dev/null StdOut=/dev/null Power= \n"
    )
}

fn texts(id: u32, name: &str, comment: &str) -> (JobId, FreeTexts) {
    let texts = FreeTexts {
        uid: Some(20_001),
        name: name.into(),
        comment: comment.into(),
        command: String::new(),
        work_dir: "/tmp".into(),
    };
    (JobId::new(id).unwrap(), texts)
}

#[test]
fn a_job_cannot_pass_for_another() {
    let forged = record(77, "x", "y")
        .replace("alice(20001)", "root(0)")
        .replace("PENDING", "COMPLETED");
    let name = format!("evil\n{forged}JobId=78 JobName=z UserId=root(0) GroupId=root(0)");
    let comment = format!("c\n{forged}");
    let output = record(1, &name, &comment) + &record(77, "honest", "");
    let known = HashMap::from([texts(1, &name, &comment), texts(77, "honest", "")]);
    let answer = jobs(&output, &known);
    assert_eq!(answer.unclear, []);
    assert_eq!(answer.records.len(), 2);
    for job in &answer.records {
        assert_eq!((job.uid, job.user.as_str()), (Some(20_001), "alice"));
        assert!(job.state.is(JobBaseState::Pending));
        assert_eq!(job.submit, Some(UnixTime::from_secs(1_795_305_073)));
    }
    assert_eq!(
        (&answer.records[0].name, &answer.records[0].comment),
        (&name, &comment)
    );
}

#[test]
fn text_that_26_05_prints_after_the_name_is_not_part_of_it() {
    let jobs = job_capture("26.05", "detailed-het-and-array");
    let found: Vec<_> = jobs
        .iter()
        .map(|job| {
            (
                job.name.as_str(),
                job.sluid.as_str(),
                job.het_job_id_set.as_str(),
            )
        })
        .collect();
    let expected = [
        ("het", "sBM1M80MKR1A00", "2-3"),
        ("het", "sBM1M80MKR1A01", "2-3"),
        ("arr", "sBM1M80MKR1H00", ""),
        ("arr", "sBM1M80MKTGY00", ""),
    ];
    assert_eq!(found, expected);
}

/// As 26.05.5 prints it: the command line repeats name and comment, and may contain anything else.
fn record_of_26_05(id: u32, name: &str, comment: &str, submit_line: &str) -> String {
    record(id, "<name>", "<comment>")
        .replace(" UserId=", &format!(" SLUID=s{id} UserId="))
        .replace(" WorkDir=", " SubmitLine=<line> WorkDir=")
        .replace(" Power= ", " TresPerNode=gres/gpu:1")
        .replace("<line>", submit_line)
        .replace("=<comment>", &format!("={comment}"))
        .replace("=<name>", &format!("={name}"))
}

#[test]
fn a_command_line_cannot_pass_for_a_job() {
    let forged = |id| {
        record(id, "x", "y")
            .replace("alice(20001)", "root(0)")
            .replace("PENDING", "COMPLETED")
    };
    let name = format!("evil\n{}", forged(500));
    let comment = format!("c\n{}", forged(501));
    // Forged records of unknown jobs (in name and comment), of a known one, and of the job itself.
    let script = format!("echo\n{}{}", forged(77), forged(1));
    let line = format!("sbatch -J {name} --comment {comment} --comment {comment} --wrap {script}");
    let output = record_of_26_05(1, &name, &comment, &line)
        + &record_of_26_05(77, "honest", "", "sbatch job.sh");
    let known = HashMap::from([texts(1, &name, &comment), texts(77, "honest", "")]);
    let answer = jobs(&output, &known);
    assert_eq!(answer.unclear, []);
    let found: Vec<_> = answer
        .records
        .iter()
        .map(|job| (job.name.as_str(), job.user.as_str(), job.tres_per.len()))
        .collect();
    assert_eq!(found, [(name.as_str(), "alice", 1), ("honest", "alice", 1)]);
    assert_eq!(answer.records[0].comment, comment);
}

#[test]
fn a_command_line_that_forges_fields_of_its_job_makes_it_ambiguous() {
    let forged = record_of_26_05(1, "a", "", "true").replace("PENDING", "COMPLETED");
    let output = record_of_26_05(1, "a", "", &format!("sbatch --wrap \n{forged}"));
    let answer = jobs(&output, &HashMap::from([texts(1, "a", "")]));
    assert_eq!(answer.records, []);
    assert_eq!(answer.unclear.len(), 1);
}

#[test]
fn many_hostile_jobs_cost_no_more_than_their_text() {
    let forged = record(9_999, "x", "y");
    let names: Vec<String> = (0..3_000).map(|n| format!("{n}\n{forged}")).collect();
    let (mut output, mut known) = (String::new(), HashMap::new());
    for (id, name) in (1..).zip(&names) {
        output += &record(id, name, name);
        known.extend([texts(id, name, name)]);
    }
    let started = std::time::Instant::now();
    let answer = jobs(&output, &known);
    assert_eq!((answer.records.len(), answer.unclear.len()), (3_000, 0));
    assert!(
        started.elapsed() < std::time::Duration::from_secs(10),
        "{:?}",
        started.elapsed()
    );
}

#[test]
fn without_a_known_name_a_forged_record_is_ambiguous() {
    let output = record(
        1,
        "x UserId=root(0) GroupId=root(0) JobState=COMPLETED SubmitTime=1",
        "",
    );
    let answer = jobs(&output, &HashMap::new());
    assert!(answer.records.is_empty());
    assert_eq!(answer.unclear.len(), 1);
}

#[test]
fn the_same_id_twice_is_unclear() {
    let answer = jobs(
        &(record(1, "a", "") + &record(1, "b", "") + &record(2, "c", "")),
        &HashMap::new(),
    );
    assert_eq!(answer.records.len(), 1);
    assert_eq!(answer.unclear.len(), 1);
}

#[test]
fn allocations_per_node_are_read() {
    let groups = "JOB_GRES=gpu:a100:4   Nodes=n3 CPU_IDs=0-2 Mem=300 GRES=gpu:a100:2(IDX:0-1)   \
                  Nodes=n[4-5] CPU_IDs=0,7 Mem=100 GRES= MinCPUsNode=1";
    let output = record(1, "a", "")
        .replace("NodeList=", "NodeList=n[3-5]")
        .replace("OverSubscribe", &format!("{groups} OverSubscribe"));
    let job = jobs(&output, &HashMap::new()).records.remove(0);
    let held: Vec<_> = job
        .node_allocs
        .iter()
        .map(|held| (held.nodes.as_str(), held.cpus, held.mem_mib, held.gpus))
        .collect();
    assert_eq!(held, [("n3", 3, 300, 2), ("n[4-5]", 2, 100, 0)]);
    assert_eq!(job.alloc_tres.cpus(), 1);
    assert!(job.req_tres.is_empty());
}

#[test]
fn gpus_are_counted_in_every_form() {
    for (gres, gpus) in [
        ("gpu:a100:4", 4),
        ("gpu:4", 4),
        ("gpu:a100:2(IDX:0,3),gpu:h100:1(IDX:1)", 3),
        ("fpga:2", 0),
        ("", 0),
        ("gpu", 1),
        ("(null)", 0),
    ] {
        assert_eq!(gres_gpus(gres), gpus, "{gres}");
    }
}

#[test]
fn indices_of_gpus_are_read_in_every_form() {
    for (gres, indices) in [
        ("gpu:a100:2(IDX:0-1)", &[0, 1][..]),
        ("gpu:a100:3(IDX:0,2-3)", &[0, 2, 3]),
        ("gpu:a100:2(IDX:0,3),gpu:h100:1(IDX:1)", &[0, 1, 3]),
        ("gpu(IDX:5)", &[5]),
        ("gpu:4(S:0-1)", &[]),
        ("gpu:a100:0(IDX:N/A)", &[]),
        ("gpu:2(IDX:0-99999999)", &[]),
        ("fpga:1(IDX:0),shard:2(IDX:1)", &[]),
        ("gpu:1(IDX:0", &[]),
        ("", &[]),
    ] {
        assert_eq!(gres_gpu_indices(gres), indices, "{gres}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let text = String::from_utf8_lossy(&bytes);
        survive(&text);
        survive(&format!("JobId=1 JobName={text} UserId=a(1) SubmitTime=5 JobState={text} Network={text}"));
        survive(&format!("NodeName=n1 State={text} CPUTot=4 Reason={text}"));
    }

    #[test]
    fn any_name_and_comment_come_back_unchanged(name in "(?s).{0,80}", comment in "(?s)[ -~\n]{0,80}") {
        let answer = jobs(&record(1, &name, &comment), &HashMap::from([texts(1, &name, &comment)]));
        prop_assert_eq!(answer.unclear, []);
        prop_assert_eq!(&answer.records[0].name, &name);
        prop_assert_eq!(&answer.records[0].comment, &comment);
        prop_assert_eq!(answer.records[0].uid, Some(20_001));
    }

    #[test]
    fn a_cut_record_never_claims_an_end(cut in 0_usize..700) {
        let output = record(1, "a", "").replace("PENDING", "COMPLETED");
        let cut = &output[..cut.min(output.len())];
        for job in jobs(cut, &HashMap::new()).records {
            prop_assert!(job.submit.is_some() && job.uid == Some(20_001));
        }
    }
}

fn survive(text: &str) {
    let _ = (
        jobs(text, &HashMap::new()),
        nodes(text),
        partitions(text),
        config(text),
        queue(text),
    );
    let _ = accounting(text, &Separator::random());
    let _ = gres_gpus(text);
}
