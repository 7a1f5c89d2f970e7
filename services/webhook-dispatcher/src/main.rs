//! Runs the dispatcher as a separate process.

use std::process::ExitCode;

fn main() -> ExitCode {
    mesh_runtime::main::<webhook_dispatcher::WebhookDispatcherService>()
}
