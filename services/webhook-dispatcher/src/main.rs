//! The dispatcher as a process of its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    mesh_runtime::main::<webhook_dispatcher::WebhookDispatcherService>()
}
