//! Answers of Slurm about a queue of any length: a real slurmctld would be busy with one of 100,000 jobs on a small machine.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::script;

/// Generates a queue with this number of jobs in a folder, from which the commands answer.
///
/// # Panics
/// If they cannot be written.
pub fn show(folder: &Path, name: &str, jobs: u32, running: bool) {
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

/// Writes `squeue` and `scontrol` into a folder. They answer from the queue that [`show`] wrote there last.
///
/// # Panics
/// If they cannot be written.
pub fn commands(folder: &Path) {
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
