//! The `workflow-trigger` process.

fn main() -> std::process::ExitCode {
    mesh_runtime::main::<workflow_trigger::WorkflowTriggerService>()
}
