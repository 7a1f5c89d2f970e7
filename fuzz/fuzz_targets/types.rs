//! Slurm's text forms: host lists, TRES, states, ids, tasks, times. Parsing a formatted value gives the same value.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slurm_types::{
    ExitCode, HostList, JobRef, JobState, NodeReason, NodeState, TaskSet, TimeLimit, Tres,
    UnixTime, parse_duration_secs, parse_mem_mib,
};

fuzz_target!(|text: &str| {
    if let Ok(hosts) = HostList::expand_up_to(text, 4_096) {
        let written = HostList::compress(&hosts);
        let mut reparsed = HostList::expand(&written).expect("what is written can be read");
        let mut hosts = hosts;
        for names in [&mut reparsed, &mut hosts] {
            names.sort();
            names.dedup();
        }
        assert_eq!(reparsed, hosts, "{text:?} was written as {written:?}");
    }
    let (tres, _) = Tres::parse_lossy(text);
    let written = tres.to_string();
    assert_eq!(
        Tres::parse_lossy(&written),
        (tres, Vec::new()),
        "{written:?}"
    );
    if let Ok(tasks) = text.parse::<TaskSet>()
        && tasks.len() <= 10_000
    {
        assert_eq!(tasks.to_string().parse::<TaskSet>().as_ref(), Ok(&tasks));
    }
    if let Ok(job) = text.parse::<JobRef>() {
        assert_eq!(job.to_string().parse::<JobRef>().as_ref(), Ok(&job));
    }
    if let Ok(code) = text.parse::<ExitCode>() {
        assert_eq!(code.to_string().parse::<ExitCode>().as_ref(), Ok(&code));
    }
    let _ = (
        JobState::parse(text),
        JobState::parse_accounting(text),
        NodeState::parse(text),
        NodeReason::lookup(text),
    );
    let _ = (
        UnixTime::parse(text),
        TimeLimit::parse(text),
        parse_duration_secs(text),
        parse_mem_mib(text),
    );
});
