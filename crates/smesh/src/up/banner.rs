//! Prints on standard output when the mesh is ready, or what it is waiting for.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use mesh_runtime::Context;

/// How long to wait silently until everything is ready.
const READY_TIMEOUT: Duration = Duration::from_secs(10);

/// Prints once when ready, and lists what is missing if that takes long.
pub fn when_ready(context: &Context, socket: &Path, own_nats: Option<&str>) {
    let (context, socket) = (context.clone(), socket.display().to_string());
    let nats = own_nats.map_or_else(|| context.mesh.nats.redacted_url(), str::to_owned);
    tokio::spawn(async move {
        let started = tokio::time::Instant::now();
        let mut warned = false;
        loop {
            let problems = context.health.problems();
            if problems.is_empty() {
                break;
            }
            if !warned && started.elapsed() > READY_TIMEOUT {
                warned = true;
                let list: Vec<String> = problems
                    .iter()
                    .map(|(name, reason)| format!("  {name}: {reason}\n"))
                    .collect();
                print(&format!(
                    "slurm-mesh is running but not ready yet. It waits for\n{}",
                    list.concat()
                ));
            }
            tokio::select! {
                () = context.shutdown.cancelled() => return,
                () = tokio::time::sleep(Duration::from_millis(50)) => {}
            }
        }
        let tcp = match context.mesh.api.listen.as_str() {
            "" => String::new(),
            listen => format!("  API      http://{listen} (with a token)\n"),
        };
        print(&format!(
            "slurm-mesh is ready: cluster {}\n  API      {socket}\n{tcp}  NATS     {nats}\n  try      smesh events --follow    smesh hooks print    smesh doctor\n",
            context.mesh.cluster
        ));
    });
}

fn print(text: &str) {
    let mut out = anstream::stdout();
    if out
        .write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .is_err()
    {
        tracing::debug!("banner not written: standard output closed");
    }
}
