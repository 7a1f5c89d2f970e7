//! The cost engine as a process of its own.

fn main() -> std::process::ExitCode {
    mesh_runtime::main::<cost_engine::CostEngineService>()
}
