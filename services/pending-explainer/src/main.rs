//! The `pending-explainer` process.

fn main() -> std::process::ExitCode {
    mesh_runtime::main::<pending_explainer::PendingExplainerService>()
}
