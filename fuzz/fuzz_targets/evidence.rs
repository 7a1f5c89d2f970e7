//! Spool files, their doorbells and the environments in them: how ingest handles input from a hook or an attacker.
#![no_main]

use std::path::Path;

use ingest::domain::Evidence;
use libfuzzer_sys::fuzz_target;
use mesh_events::proto::mesh::hook::v1::Doorbell;
use mesh_hook::spool;
use prost::Message as _;
use slurm_client::HookEnv;

fuzz_target!(|data: &[u8]| {
    // As a spool file. libFuzzer traces comparisons, so it finds checksums.
    let name = Path::new("00000000000000000001-id-1.bell");
    if let Some(spooled) = spool::parse(name, data) {
        assert_eq!(spool::content(&spooled.subject, &spooled.body), data);
        doorbell(&spooled.body);
    }
    // As a file without its first line, the checksum.
    if let Some(end) = data.iter().position(|byte| *byte == b'\n')
        && let Ok(subject) = std::str::from_utf8(&data[..end])
    {
        let body = &data[end + 1..];
        let spooled = spool::parse(name, &spool::content(subject, body));
        let read = spooled
            .as_ref()
            .map(|spooled| (spooled.subject.as_str(), spooled.body.as_slice()));
        // Any other subject would break a line of the protocol. The spool never writes it.
        let is_token = !subject.is_empty() && subject.bytes().all(|byte| byte.is_ascii_graphic());
        assert_eq!(read, is_token.then_some((subject, body)));
        doorbell(body);
    }
    doorbell(data);
    // As an environment, one variable per line.
    let text = String::from_utf8_lossy(data);
    let variables = text.lines().filter_map(|line| line.split_once('='));
    read(&Doorbell {
        hook: "jobcomp".to_owned(),
        job_id: 1,
        environment: variables
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
        ..Doorbell::default()
    });
});

fn doorbell(body: &[u8]) {
    if let Ok(doorbell) = Doorbell::decode(body) {
        read(&doorbell);
        assert_eq!(Doorbell::decode(doorbell.encode_to_vec().as_slice()), Ok(doorbell));
    }
}

fn read(doorbell: &Doorbell) {
    let _ = HookEnv::from_env(&doorbell.environment);
    match Evidence::read(&doorbell.cluster, doorbell) {
        Ok(evidence) => assert_eq!(evidence.job_id, doorbell.job_id),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
