//! A short day on a real Slurm cluster: `make demo`.
//!
//! Starts its own cluster, `smesh up` and a receiver, plays [`integration::scenario`] and the three examples of `examples/triggers`
//! (an arrived object, a lack of memory, a nightly job), shows events as they happen, and reports whether all arrived and each example
//! ran once. With `DEMO_ATTACH=1` it attaches to the Slurm that this shell uses, plays three jobs only, and does not change its configuration.
//!
//! | environment | |
//! | --- | --- |
//! | `DEMO_STAY=1` | keep running after the day, for exploring |
//! | `DEMO_ATTACH=1` | attach to the Slurm of `SLURM_CONF` or of Slurm's default, and submit three jobs there |
//! | `DEMO_WATCH=1` | with `DEMO_ATTACH=1`: submit nothing, show events until Ctrl-C |

mod attach;
mod end;
mod feed;
mod report;
mod triggers;
mod watch;
mod words;

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use integration::scenario;
use integration::{
    Cluster, ClusterOptions, Error, Mesh, MeshOptions, Programs, Receiver, interrupted,
};

use end::End;
use feed::Feed;
use triggers::Rules;
use watch::Watch;

/// Name of the endpoint that gets every event, signed.
const PIPELINE: &str = "pipeline";
/// Name of the chat endpoint.
const CHAT: &str = "chat";

#[tokio::main]
async fn main() -> ExitCode {
    // Everything that was started ends with the future, whichever of the two is first.
    let demo = async {
        if is_set("DEMO_ATTACH") {
            attach::run().await
        } else {
            run().await
        }
    };
    let code = tokio::select! {
        result = demo => result.unwrap_or_else(|error| {
            Feed::new(Instant::now()).problem(&error.chain());
            ExitCode::FAILURE
        }),
        () = interrupted() => {
            anstream::eprintln!("\nstopping everything …");
            ExitCode::from(130)
        }
    };
    code
}

/// True if a variable of the environment is 1.
fn is_set(variable: &str) -> bool {
    std::env::var(variable).is_ok_and(|value| value == "1")
}

async fn run() -> Result<ExitCode, Error> {
    let started = Instant::now();
    let feed = Feed::new(started);
    feed.heading("a Slurm cluster of our own");
    let cluster = Cluster::start(&ClusterOptions::full("demo")).await?;
    feed.note(&format!(
        "Slurm {}, nodes {} and {} in the cloud, hooks on, accounting on",
        cluster.fact("slurm_version").unwrap_or_default(),
        cluster.fact("nodes").unwrap_or_default(),
        cluster.fact("cloud_nodes").unwrap_or_default(),
    ));
    let receiver = Receiver::start().await?;
    let smesh = Programs::find()?.smesh;
    let rules = Rules::set_up(&cluster, smesh.parent().unwrap_or(Path::new(".")))?;
    let mut mesh = Mesh::set_up(&cluster, "mesh", &options(&receiver, &rules)).await?;
    feed.heading("smesh up");
    mesh.start().await?;
    cluster.ring(&mesh.hook_config())?;
    feed.note(
        "seven services and a nats-server run; price book, people, three webhook endpoints and the rules of examples/triggers are set",
    );
    let nightly_at = rules.soon(&mesh)?;
    feed.heading("a day in short");
    let watch = Watch::start(&mesh, &receiver, feed).await?;
    let day = scenario::play(&cluster, &mesh).await?;
    feed.heading("events that start jobs");
    let examples = rules.play(&cluster, &mesh, &receiver, nightly_at).await;
    let end = End {
        mesh: &mesh,
        watch: &watch,
        day: &day,
        examples: &examples,
        cluster: Some(&cluster),
    };
    let code = end.conclude(started).await?;
    if is_set("DEMO_STAY") {
        print_next_steps(&cluster, &mesh);
        std::future::pending::<()>().await;
    }
    drop(watch);
    mesh.stop().await?;
    Ok(code)
}

/// The configuration of the demo's mesh.
fn options(receiver: &Receiver, rules: &Rules) -> MeshOptions {
    let endpoints = [
        receiver.endpoint(PIPELINE, "types = [\"*\"]"),
        receiver.chat(CHAT, ""),
        rules.overlay(receiver),
    ]
    .concat();
    MeshOptions {
        overlay: format!(
            "[ingest]\npoll_interval = \"1s\"\nusage_delay = \"2s\"\n[node-watcher]\npoll_interval = \"1s\"\n{endpoints}"
        ),
        price_book: Some(scenario::PRICE_BOOK.to_owned()),
        identities: Some(scenario::IDENTITIES.to_owned()),
    }
}

fn print_next_steps(cluster: &Cluster, mesh: &Mesh) {
    anstream::println!(
        "\nEverything stays up until Ctrl-C. In another shell, as root:\n  \
         . {}/env\n  export MESH_CONFIG={} SMESH_KNOWN_LEDGERS={}\n  export PATH={}:$PATH\n  \
         smesh events --follow      smesh cost --by user      smesh webhooks list      smesh triggers runs      smesh doctor\n  \
         tests/cluster/as {} alice sbatch --wrap 'sleep 5'",
        cluster.dir().display(),
        mesh.config().display(),
        mesh.known_ledgers().display(),
        mesh.programs_dir().display(),
        cluster.dir().display(),
    );
}
