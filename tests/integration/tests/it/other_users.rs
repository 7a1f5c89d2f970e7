//! Access of another Unix user of the same host, until Slurm makes him coordinator of an account.

use integration::{Cluster, Mesh, Slurm as _, wait_for};
use serde_json::Value;

use crate::support::{PATIENCE, agrees, small};

#[tokio::test(flavor = "multi_thread")]
async fn another_user_reads_no_jobs_adds_no_endpoint_and_reaches_no_nats() {
    let associations = "[ingest.users]\ninterval = \"1s\"\n";
    let (cluster, mesh) = small("strangers", associations).await;
    let submit = async |account: &str| {
        let options = ["-Jsecret", "-A", account];
        cluster.submit("alice", &options, "true").await.unwrap()
    };
    let (job, other) = (submit("physics").await, submit("ml").await);
    agrees(&cluster, &mesh, &[job, other]).await;
    // There is data to protect.
    wait_for("root sees what the job cost", PATIENCE, async || {
        let costs = mesh.get("/v1/costs?by=job").await?.json();
        let rows = costs["rows"].as_array();
        Ok(rows.filter(|rows| !rows.is_empty()).map(|_| ()))
    })
    .await
    .unwrap();
    let history = format!("/v1/jobs/{}/{job}", cluster.name());

    let (status, body) = ask(&cluster, &mesh, "alice", &[], &history).await;
    assert_eq!(status, 200, "{body}");
    assert!(body.contains("secret"));
    let (status, body) = ask(&cluster, &mesh, "bob", &[], &history).await;
    assert_eq!(status, 404, "{body}");
    for path in [
        "/v1/events",
        "/v1/events?user=alice",
        &format!("/v1/events?job={job}"),
        "/v1/events?type=node.*,capture.*,audit.*",
        "/v1/costs?by=job",
        "/v1/costs?by=user&user=alice",
        &format!("/v1/queue/{}/{job}", cluster.name()),
    ] {
        let (status, body) = ask(&cluster, &mesh, "bob", &[], path).await;
        // A refusal may repeat the requested user's name.
        assert!(
            !body.contains("secret") && (status >= 400 || !body.contains("alice")),
            "{path}: {status} {body}"
        );
        let body: Value = serde_json::from_str(&body).unwrap_or_default();
        let listed = ["entries", "rows"]
            .iter()
            .filter_map(|key| body[key].as_array());
        let listed: usize = listed.map(Vec::len).sum();
        assert!(status >= 400 || listed == 0, "{path}: {status} {body}");
    }

    // He may have his own webhooks, to public addresses, and sees no others.
    for (method, expected) in [("GET", 200), ("POST", 422), ("PUT", 405), ("DELETE", 405)] {
        let spec = "{\"name\":\"mine\",\"url\":\"https://127.0.0.1:1/\"}";
        let arguments = ["-X", method, "-d", spec];
        let arguments = if method == "GET" {
            &arguments[..2]
        } else {
            &arguments[..]
        };
        let (status, body) = ask(&cluster, &mesh, "bob", arguments, "/v1/webhooks").await;
        assert_eq!(status, expected, "{method}: {body}");
        if method == "GET" {
            assert_eq!(body.trim(), "{\"webhooks\":[]}");
        }
    }
    files_unchanged(&cluster, &mesh).await;
    nats_unchanged(&cluster, &mesh).await;
    coordinates(&cluster, &mesh, job, other).await;
}

/// Once Slurm makes him a coordinator of physics, he sees this job of that account, but not the other one. Afterwards he sees neither.
async fn coordinates(cluster: &Cluster, mesh: &Mesh, job: u32, other: u32) {
    let sees = async |job: u32| {
        let history = format!("/v1/jobs/{}/{job}", cluster.name());
        ask(cluster, mesh, "bob", &[], &history).await.0 == 200
    };
    let sacctmgr = async |sacctmgr_arguments: &str| {
        let command = [
            "sacctmgr",
            "-i",
            sacctmgr_arguments,
            "coordinator",
            "account=physics",
        ];
        let command = [&command[..], &["names=bob"]].concat();
        cluster.ask("root", &command).await.unwrap();
    };
    assert!(!sees(job).await && !sees(other).await);
    sacctmgr("add").await;
    let seen = async || Ok(sees(job).await.then_some(()));
    wait_for("bob sees a job of his account", PATIENCE, seen)
        .await
        .unwrap();
    assert!(!sees(other).await);
    let events = format!("/v1/events?job={job}");
    let (_, listed) = ask(cluster, mesh, "bob", &[], &events).await;
    assert!(listed.contains("job.submitted"), "{listed}");
    // Reads of other users' data are recorded in the audit.
    wait_for("his reads are in the ledger", PATIENCE, async || {
        let reads = mesh.get("/v1/events?type=audit.read&limit=1000").await?;
        let reads = reads.json()["entries"].as_array().cloned();
        let found = reads.unwrap_or_default().into_iter().any(|entry| {
            let read = &entry["event"]["data"]["read"];
            let request = read["request"].as_str().unwrap_or_default();
            read["reader"] == "bob"
                && read["role"] == "coordinator"
                && read["whose"] == serde_json::json!(["alice"])
                && request.ends_with(&events)
        });
        Ok(found.then_some(()))
    })
    .await
    .unwrap();
    sacctmgr("delete").await;
    let is_hidden = async || Ok((!sees(job).await).then_some(()));
    wait_for("bob sees it no more", PATIENCE, is_hidden)
        .await
        .unwrap();
}

/// Sends a request to the API as a user.
async fn ask(
    cluster: &Cluster,
    mesh: &Mesh,
    user: &str,
    arguments: &[&str],
    path: &str,
) -> (u16, String) {
    let socket = mesh.socket();
    let url = format!("http://localhost{path}");
    let fixed = ["curl", "-sS", "-w", "\n%{http_code}", "--unix-socket"];
    let command = [&fixed[..], &[socket.to_str().unwrap(), &url], arguments].concat();
    let text = cluster.ask(user, &command).await.unwrap();
    let (body, status) = text.rsplit_once('\n').unwrap_or(("", &text));
    (status.parse().unwrap(), body.to_owned())
}

async fn files_unchanged(cluster: &Cluster, mesh: &Mesh) {
    let data = mesh.data_dir();
    for name in [
        "private/nats-passwords/admin",
        "private/nats.conf",
        "hook.toml",
        "hook-spool",
        "ledger.db",
        "",
    ] {
        let path = data.join(name);
        assert!(path.exists(), "{} is there", path.display());
        let path = path.to_str().unwrap().to_owned();
        let read = format!("cat {path} || ls {path}/.");
        let output = cluster.run("bob", &["sh", "-c", &read]).await.unwrap();
        assert!(!output.status.success(), "bob can read {path}");
    }
    let config = mesh.config();
    let write = format!("echo >> {}", config.display());
    let output = cluster.run("bob", &["sh", "-c", &write]).await.unwrap();
    assert!(
        !output.status.success(),
        "bob can write {}",
        config.display()
    );
}

/// Its port is on loopback, where any user may connect. The server requires a password.
async fn nats_unchanged(cluster: &Cluster, mesh: &Mesh) {
    let port = mesh.nats_port().unwrap();
    // Nothing is sent after the login: unread bytes could reset the connection and lose the server's refusal.
    for login in [
        "",
        "\"user\":\"reader\",\"pass\":\"\",",
        "\"user\":\"admin\",\"pass\":\"admin\",",
    ] {
        let talk = format!(
            "exec 3<>/dev/tcp/127.0.0.1/{port}; printf 'CONNECT {{{login}\"verbose\":true}}\\r\\n' >&3; timeout 60 cat <&3"
        );
        let output = cluster.run("bob", &["bash", "-c", &talk]).await.unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(
            printed.contains("Authorization Violation"),
            "{login}: {printed}"
        );
        assert!(!printed.contains("+OK"), "{login}: {printed}");
    }
}
