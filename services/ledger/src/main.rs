//! The ledger as a separate process.

fn main() -> std::process::ExitCode {
    mesh_runtime::main::<ledger::LedgerService>()
}
