//! The `node-watcher` process.

fn main() -> std::process::ExitCode {
    mesh_runtime::main::<node_watcher::NodeWatcherService>()
}
