//! The cost engine as a separate process.

fn main() -> std::process::ExitCode {
    mesh_runtime::main::<cost_engine::CostEngineService>()
}
