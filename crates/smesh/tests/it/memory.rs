//! `smesh up` bounds the memory that malloc keeps: ingest is one of its services.

use std::fs;

use crate::mesh::Mesh;

#[test]
fn up_restarts_itself_with_settings_of_malloc_that_bound_its_memory() {
    let mesh = Mesh::started();
    let environment = fs::read(format!("/proc/{}/environ", mesh.pid())).unwrap();
    let environment = String::from_utf8_lossy(&environment).into_owned();
    assert!(environment.contains("MALLOC_ARENA_MAX=2"), "{environment}");
    // Commands that print something and end need no second start.
    assert!(mesh.run(&["events"]).status.success());
}
