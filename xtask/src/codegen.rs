//! Rust bindings of `proto/`, made by protox: no `protoc` needed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use prost::Message;

/// Generated files and their content.
pub fn files(root: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let proto = root.join("proto");
    let mut sources = Vec::new();
    find_protos(&proto, &mut sources)?;
    sources.sort();
    let descriptors = protox::compile(&sources, [&proto]).context("compile proto/")?;

    let scratch = root.join("target/xtask-codegen");
    let mut files = BTreeMap::new();

    let messages = fresh(&scratch.join("messages"))?;
    let mut config = prost_build::Config::new();
    config
        .out_dir(&messages)
        .extern_path(".google.protobuf", "::pbjson_types")
        .compile_well_known_types()
        .btree_map(["."])
        .include_file("mod.rs");
    config.compile_fds(descriptors.clone())?;
    pbjson_build::Builder::new()
        .register_descriptors(&descriptors.encode_to_vec())?
        .out_dir(&messages)
        .extern_path(".google.protobuf", "::pbjson_types")
        .btree_map(["."])
        .build(&[".mesh"])?;
    collect(
        &messages,
        &root.join("crates/mesh-events/src/generated"),
        &mut files,
    )?;

    let services = fresh(&scratch.join("services"))?;
    tonic_prost_build::configure()
        .out_dir(&services)
        .compile_well_known_types(true)
        .extern_path(".google.protobuf", "::pbjson_types")
        .extern_path(".mesh", "::mesh_events::proto::mesh")
        .build_transport(false)
        .compile_fds(descriptors)?;
    collect(
        &services,
        &root.join("crates/mesh-api/src/generated"),
        &mut files,
    )?;
    files.retain(|path, content| {
        !(content.trim().is_empty() || path.ends_with("google.protobuf.rs"))
    });
    Ok(files)
}

fn find_protos(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            find_protos(&path, found)?;
        } else if path.extension().is_some_and(|e| e == "proto") {
            found.push(path);
        }
    }
    Ok(())
}

fn fresh(folder: &Path) -> Result<PathBuf> {
    if folder.exists() {
        std::fs::remove_dir_all(folder)?;
    }
    std::fs::create_dir_all(folder)?;
    Ok(folder.to_owned())
}

/// Reads what a generator wrote; `*.serde.rs` of pbjson is appended to its messages' file.
fn collect(from: &Path, to: &Path, files: &mut BTreeMap<PathBuf, String>) -> Result<()> {
    let mut names: Vec<_> = std::fs::read_dir(from)?.collect::<Result<Vec<_>, _>>()?;
    names.sort_by_key(std::fs::DirEntry::file_name);
    for entry in names {
        let name = entry.file_name().to_string_lossy().into_owned();
        let target = to.join(name.replace(".serde.rs", ".rs"));
        let content = std::fs::read_to_string(entry.path())?;
        files.entry(target).or_default().push_str(&content);
    }
    Ok(())
}
