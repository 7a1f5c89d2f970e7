//! The Lua files of `hooks/lua`, for `smesh hooks install`.

use std::path::Path;

/// A Lua file.
#[derive(Clone, Copy, Debug)]
pub struct File {
    /// Name in the folder of the hook scripts.
    pub name: &'static str,
    text: &'static str,
}

/// All files. The others load the first one.
pub const FILES: &[File] = &[
    File {
        name: "mesh.lua",
        text: include_str!("../../lua/mesh.lua"),
    },
    File {
        name: "job_submit.lua",
        text: include_str!("../../lua/job_submit.lua"),
    },
    File {
        name: "cli_filter.lua",
        text: include_str!("../../lua/cli_filter.lua"),
    },
];

const SCRIPTS: &str = "\"/etc/slurm-mesh/hooks/mesh.lua\"";
const LINES: &str = "\"/run/slurm-mesh/lines\"";

impl File {
    /// Text of the file, with these folders for scripts and lines filled in.
    pub fn text(&self, scripts: &Path, lines: &Path) -> String {
        self.text
            .replace(SCRIPTS, &quoted(&scripts.join(FILES[0].name)))
            .replace(LINES, &quoted(lines))
    }
}

/// Line that loads the module, for a site's existing plugin.
pub fn load(scripts: &Path) -> String {
    let module = quoted(&scripts.join(FILES[0].name));
    format!("local _, mesh = pcall(dofile, {module})")
}

/// A Lua string literal.
fn quoted(path: &Path) -> String {
    let text = path.to_string_lossy();
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_name_the_folders_of_this_machine() {
        let texts: Vec<String> = FILES
            .iter()
            .map(|file| file.text(Path::new("/a b"), Path::new("/l\"")))
            .collect();
        assert!(texts[0].contains(r#"local FOLDER = "/l\"""#));
        for text in &texts[1..] {
            assert!(
                text.contains(&format!("\n{}\n", load(Path::new("/a b")))),
                "{text}"
            );
        }
    }
}
