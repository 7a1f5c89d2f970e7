//! The ledger as a process of its own.

fn main() -> std::process::ExitCode {
    mesh_runtime::main::<ledger::LedgerService>()
}
