//! The ingest process.

use std::process::ExitCode;

fn main() -> ExitCode {
    mesh_runtime::restart_with_bounded_malloc();
    mesh_runtime::main::<ingest::IngestService>()
}
