//! An orderly stop ends in time with status 0 and leaves no process behind, even if peers do not answer or do not read.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use mesh_events::EventType;
use mesh_testkit::{Postgres, fixtures, script};

use crate::mesh::{Mesh, stdout};
use crate::others::publish;

/// `mesh.drain_deadline` of these meshes.
const DRAIN_DEADLINE: Duration = Duration::from_secs(60);
const COMMANDS: [&str; 8] = [
    "squeue", "sacct", "scontrol", "sinfo", "sacctmgr", "sdiag", "sshare", "sprio",
];

fn configure(mesh: &Mesh, change: impl FnOnce(String) -> String) {
    let path = mesh.path("mesh.toml");
    let text = fs::read_to_string(&path).unwrap();
    // Longer than its default: a stop may take most of it by design, and the machine may be busy.
    let drain = format!(
        "[mesh]\ndrain_deadline = \"{}s\"\n",
        DRAIN_DEADLINE.as_secs()
    );
    mesh_testkit::write_private(&path, change(text.replacen("[mesh]\n", &drain, 1)));
}

/// Process ids that the commands have written.
fn noted(file: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// True if a process runs. A zombie does not.
fn runs(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn commands_of_slurm_that_hang_do_not_hold_up_a_stop_and_end_with_it() {
    let mut mesh = Mesh::init();
    let (bin, pids) = (mesh.path("bin"), mesh.path("pids"));
    fs::create_dir(&bin).unwrap();
    for command in COMMANDS {
        // Like a site's wrapper, which starts the real command.
        let hangs = format!(
            "echo $$ >> {0}\nsleep 600 &\necho $! >> {0}\nwait",
            pids.display()
        );
        script(&bin.join(command), &hangs);
    }
    configure(&mesh, |text| {
        let slurm = format!("[slurm]\nbin_dir = {bin:?}\ncommand_timeout = \"5m\"");
        text.replacen("[slurm]", &slurm, 1)
    });
    mesh.start();
    // The commands of ingest and node-watcher.
    mesh.wait_until("commands hang", || {
        noted(&pids).len() >= 4 && noted(&pids).iter().all(|pid| runs(pid))
    });
    let status = mesh.end_within("-TERM", DRAIN_DEADLINE);
    assert!(status.success(), "{status}");
    mesh.wait_until("they are gone", || {
        !noted(&pids).iter().any(|pid| runs(pid))
    });
}

/// A gRPC call over HTTP/2 with an empty request, whose answer is not read.
fn call(socket: &Path, method: &str) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    let mut headers = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "mesh"),
        (":path", method),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ] {
        // A literal header field without indexing (RFC 7541, 6.2.2).
        headers.push(0);
        for text in [name, value] {
            headers.push(u8::try_from(text.len()).unwrap());
            headers.extend(text.bytes());
        }
    }
    let frame = |kind: u8, flags: u8, id: u8, body: &[u8]| {
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, id], body].concat()
    };
    stream
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        .unwrap();
    stream.write_all(&frame(4, 0, 0, &[])).unwrap();
    stream.write_all(&frame(1, 4, 1, &headers)).unwrap();
    stream.write_all(&frame(0, 1, 1, &[0; 5])).unwrap();
    // Until the answer has begun but not ended.
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut body = vec![0; length.try_into().unwrap()];
        stream.read_exact(&mut body).unwrap();
        if (head[3], head[8]) == (1, 1) {
            assert_eq!(head[4] & 1, 0, "it has ended: {body:?}");
            return stream;
        }
    }
}

fn get(socket: &Path, path: &str) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: mesh\r\n\r\n").unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200", "{path}");
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn stalled_readers_do_not_delay_a_stop() {
    let mut mesh = Mesh::init();
    configure(&mesh, |text| text);
    mesh.start();
    // More than fits into the socket's buffers.
    for id in 1..=300 {
        let mut job = fixtures::job(id);
        job.comment = "x".repeat(4_000);
        publish(&mesh, &fixtures::job_event(EventType::JobStarted, job)).await;
    }
    mesh.wait_until("they are in the ledger", || {
        stdout(&mesh.run(&["events", "--job", "300"])).contains("job.started")
    });
    let socket = mesh.path("data/api.sock");
    let events = "/mesh.ledger.v1.EventsService";
    let readers = [
        get(&socket, "/v1/events/export"),
        get(&socket, "/v1/events/stream?after=0"),
        call(&socket, &format!("{events}/TailEvents")),
        call(&socket, &format!("{events}/ExportEvents")),
        // Connections without a request.
        UnixStream::connect(&socket).unwrap(),
    ];
    let status = mesh.end_within("-TERM", DRAIN_DEADLINE);
    assert!(status.success(), "{status}");
    drop(readers);
}

#[tokio::test(flavor = "multi_thread")]
async fn databases_that_hang_do_not_hold_up_a_stop() {
    let postgres = Postgres::start().await;
    let mut mesh = Mesh::init();
    configure(&mesh, |mut text| {
        for service in ["ledger", "cost-engine", "webhook-dispatcher"] {
            let url = postgres.create_database();
            text += &format!("\n[{service}.db]\nurl = {url:?}\n");
        }
        let key = "A".repeat(43) + "=\n";
        mesh_testkit::write_private(&mesh.path("webhooks.key"), key);
        text + "\n[webhook-dispatcher]\nsecrets_key_file = \"webhooks.key\"\n"
    });
    mesh.start();
    publish(
        &mesh,
        &fixtures::job_event(EventType::JobStarted, fixtures::job(1)),
    )
    .await;
    mesh.wait_until("it is in the ledger", || {
        stdout(&mesh.run(&["events", "--job", "1"])).contains("job.started")
    });
    let paused = postgres.pause();
    let socket = mesh.path("data/api.sock");
    // Requests that wait for the database, and a pending write.
    let asked = ["/v1/events", "/v1/costs", "/v1/webhooks"].map(|path| {
        let mut stream = UnixStream::connect(&socket).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: mesh\r\n\r\n").unwrap();
        stream
    });
    publish(
        &mesh,
        &fixtures::job_event(EventType::JobStarted, fixtures::job(2)),
    )
    .await;
    let status = mesh.end_within("-TERM", DRAIN_DEADLINE);
    assert!(status.success(), "{status}");
    drop((asked, paused));
}
