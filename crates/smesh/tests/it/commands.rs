//! Commands that need no cluster: help, prices, verification, hooks.

use std::fs;

use crate::mesh::{Mesh, stderr, stdout};

#[test]
fn the_help_teaches() {
    let mesh = Mesh::init();
    let mut text = stdout(&mesh.run(&["--help"]));
    for command in ["events", "wait", "cost", "up", "verify"] {
        text.push_str(&format!("\n==> smesh {command} --help\n"));
        text.push_str(&stdout(&mesh.run(&[command, "--help"])));
    }
    insta::assert_snapshot!(text);
}

#[test]
fn a_price_book_is_checked_against_expected_costs() {
    const EXAMPLES: &str = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../services/cost-engine/examples"
    );
    let mesh = Mesh::init();
    let checks = format!("{EXAMPLES}/price-checks.toml");
    let book = format!("{EXAMPLES}/price-book.toml");
    let good = mesh.run(&["price", "check", &checks, "--book", &book]);
    assert!(
        good.status.success() && stdout(&good).contains("0 have another cost"),
        "{good:?}"
    );
    // The book written by `smesh init` has other nodes, and no prices yet.
    let own = mesh.run(&["price", "check", &checks]);
    assert!(
        !own.status.success() && stdout(&own).contains("expected 0.36 EUR, it has no price"),
        "{own:?}"
    );
    let json = mesh.run(&["--json", "price", "check", &checks]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["passed"], false);
    assert_eq!(json["jobs"][0]["expected_micros"], 360_000);
    fs::write(mesh.path("bad.toml"), "[[job]]\nname = 7\n").unwrap();
    let bad = mesh.run(&["price", "check", "bad.toml"]);
    assert!(
        !bad.status.success() && stderr(&bad).contains("bad.toml: line 2"),
        "{bad:?}"
    );
}

#[test]
fn budget_files_are_checked_with_all_faults_at_once() {
    const EXAMPLE: &str = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../services/cost-engine/examples/budgets.toml"
    );
    let mesh = Mesh::init();
    let good = mesh.run(&["budget", "check", EXAMPLE]);
    assert!(
        good.status.success() && stdout(&good).contains("4 budgets, no faults"),
        "{good:?}"
    );
    let faulty = "[[budget]]\nname = \"b\"\nscope = { group = \"x\" }\nperiod = \"week\"\namount = 1\ncurrency = \"XTS\"\n";
    fs::create_dir(mesh.path("budgets.d")).unwrap();
    fs::write(mesh.path("budgets.d/b.toml"), faulty).unwrap();
    let bad = mesh.run(&["--json", "budget", "check", "budgets.d"]);
    let json: serde_json::Value = serde_json::from_slice(&bad.stdout).unwrap();
    assert!(!bad.status.success() && json["passed"] == false, "{bad:?}");
    let faults: Vec<_> = json["faults"]
        .as_array()
        .unwrap()
        .iter()
        .map(|fault| (fault["line"].as_u64(), fault["key"].as_str().unwrap()))
        .collect();
    // The price book written by `smesh init` has another currency.
    assert_eq!(
        faults,
        [
            (Some(3), "budget \"b\": scope.group"),
            (Some(4), "budget \"b\": period"),
            (Some(6), "budget \"b\": currency"),
        ]
    );
}

#[test]
fn budgets_are_only_sent_if_all_of_the_file_are_valid() {
    let mesh = Mesh::init();
    let good = "[[budget]]\nname = \"a\"\nscope = { account = \"x\" }\nperiod = \"month\"\namount = \"1\"\n";
    let bad = good.replace("\"a\"", "\"b\"").replace("month", "week");
    fs::write(mesh.path("set.toml"), format!("{good}{bad}")).unwrap();
    let set = mesh.run(&["budget", "set", "set.toml"]);
    // No service runs, so sending the first budget would fail for another reason.
    let text = stderr(&set);
    assert!(
        !set.status.success() && text.contains("budget \"b\": period"),
        "{set:?}"
    );
    assert!(!text.contains("not set"), "{set:?}");
}

#[test]
fn options_that_a_form_of_report_does_not_have_are_refused() {
    let mesh = Mesh::init();
    let report = ["cost", "report", "--period", "2026-11"];
    for (options, refused) in [
        (&["--format", "focus", "--by", "user"][..], "--by"),
        (
            &["--format", "focus", "--timezone", "Asia/Tokyo"],
            "--timezone",
        ),
        (&["--format", "csv", "--site", "S"], "--site"),
        (&["--billed-effective"], "--billed-effective"),
    ] {
        let output = mesh.run(&[&report[..], options].concat());
        assert_eq!(output.status.code(), Some(64), "{output:?}");
        assert!(stderr(&output).contains(refused), "{output:?}");
    }
    let close = mesh.run(&["cost", "close"]);
    assert_eq!(close.status.code(), Some(64), "{close:?}");
}

#[test]
fn prices_are_imported_and_jobs_estimated_by_them() {
    let mesh = Mesh::init();
    let book = "name = \"b\"\nversion = \"1\"\ncurrency = \"EUR\"\n[[node_type]]\nname = \"t\"\ncpu = 8\nmem = 1000\n[[node_type.series]]\nmarket = \"on_demand\"\nfile = \"series.csv\"\n";
    fs::write(mesh.path("book.toml"), book).unwrap();
    let import = |feed: &str| {
        fs::write(mesh.path("feed.csv"), feed).unwrap();
        mesh.run(&[
            "price",
            "import",
            "csv",
            "feed.csv",
            "--price-column",
            "eur",
            "-o",
            "series.csv",
        ])
    };
    let feed = "time,eur\n2026-07-01T00:00:00Z,2.50\n";
    let written = import(feed);
    assert!(written.status.success(), "{written:?}");
    let estimate = |more: &[&str]| {
        let words = [
            "price",
            "estimate",
            "--book",
            "book.toml",
            "--nodes",
            "2",
            "--cpus",
            "4",
            "--time",
            "24h",
        ];
        mesh.run(&[&words[..], more].concat())
    };
    let good = estimate(&["--at", "2026-07-02"]);
    assert_eq!(stdout(&good).trim(), "2.50 EUR per hour, at most 60.00 EUR");
    let early = estimate(&["--at", "2026-06-01"]);
    assert!(
        !early.status.success() && stderr(&early).contains("price_missing"),
        "{early:?}"
    );
    // The series grows; its past does not change.
    let grown = import(&format!("{feed}2026-08-01T00:00:00Z,5\n"));
    assert!(stdout(&grown).contains("2 prices"), "{grown:?}");
    let changed = import(&feed.replace("2.50", "2.40"));
    assert!(
        !changed.status.success() && stderr(&changed).contains("past prices"),
        "{changed:?}"
    );
    let faulty = import("time,eur\nsoon,1\n");
    assert!(
        !faulty.status.success() && stderr(&faulty).contains("feed.csv: line 2: time"),
        "{faulty:?}"
    );
    let dearer = estimate(&["--at", "2026-08-02", "--gres", "gpu:1"]);
    assert!(
        stderr(&dearer).contains("resource_not_on_node"),
        "{dearer:?}"
    );
}

#[test]
fn a_ledger_is_verified_and_a_missing_one_is_named() {
    let mut mesh = Mesh::started();
    mesh.end("-TERM");
    let good = mesh.run(&["verify", "--json"]);
    assert!(
        good.status.success() && stdout(&good).contains("\"verified\":true"),
        "{good:?}"
    );
    let absent = mesh.run(&["verify", "--database", "absent.db"]);
    assert!(
        !absent.status.success() && stderr(&absent).contains("absent.db"),
        "{absent:?}"
    );
    // A JSON client gets an answer in any case.
    for (args, reason) in [
        (["--database", "absent.db"], "absent.db"),
        (
            ["--database=absent.db", "--no-such-option"],
            "unexpected argument",
        ),
    ] {
        let answer = mesh.run(&[&["verify", "--json"], args.as_slice()].concat());
        let json: serde_json::Value = serde_json::from_slice(&answer.stdout).unwrap();
        assert!(
            !answer.status.success() && json["verified"] == false,
            "{answer:?}"
        );
        assert!(json["error"].as_str().unwrap().contains(reason), "{json}");
    }
}

#[test]
fn times_are_parsed_as_in_the_help() {
    let mesh = Mesh::started();
    for time in [
        "2026-11-01",
        "2026-11-01T10:00",
        "2026-11-01T10:00:00+01:00",
        "yesterday",
        "2h",
        "now-2hours",
    ] {
        for command in ["events", "stats", "cost"] {
            let output = mesh.run(&[command, "--since", time]);
            assert!(
                output.status.success(),
                "{command} --since {time}: {output:?}"
            );
        }
    }
    let output = mesh.run(&["events", "--since", "tomorrow"]);
    assert_eq!(output.status.code(), Some(64), "{output:?}");
    assert!(
        stderr(&output).contains("\"tomorrow\" is not a time; allowed: 2026-11-22T10:00:00Z"),
        "{output:?}"
    );
}

#[test]
fn hook_scripts_keep_the_sites_own_programs() {
    let mesh = Mesh::init();
    let conf = fs::read_to_string(mesh.path("slurm.conf")).unwrap();
    fs::write(
        mesh.path("slurm.conf"),
        conf + "PrologSlurmctld=/site/prolog\n",
    )
    .unwrap();
    let printed = stdout(&mesh.run(&["hooks", "print", "--slurm-conf", "slurm.conf"]));
    assert!(
        printed.contains("--hook PrologSlurmctld --chain /site/prolog")
            && printed.contains("JobCompType=jobcomp/script"),
        "{printed}"
    );
    let installed = mesh.run(&[
        "hooks",
        "install",
        "hooks",
        "--slurm-conf",
        "slurm.conf",
        "--program",
        "/bin/echo",
    ]);
    assert!(installed.status.success(), "{installed:?}");
    let printed = std::process::Command::new(mesh.path("hooks/epilog-slurmctld"))
        .arg("a b")
        .output()
        .unwrap();
    let hook_config = mesh.path("data/hook.toml");
    assert_eq!(
        stdout(&printed),
        format!(
            "--config {} --hook EpilogSlurmctld -- a b\n",
            hook_config.display()
        )
    );
}

#[test]
fn hooks_without_a_configuration_get_a_remedy() {
    let mesh = Mesh::init();
    for (file, status, advice) in [
        ("absent.toml", 78, "--hook-config"),
        ("broken.toml", 78, "broken.toml: line 1"),
    ] {
        fs::write(mesh.path("broken.toml"), "cluster = 1").unwrap();
        let output = mesh.run(&["hooks", "flush", "--hook-config", file]);
        let printed = stderr(&output);
        assert_eq!(output.status.code(), Some(status), "{printed}");
        assert!(
            printed.contains(file) && printed.contains(advice),
            "{printed}"
        );
    }
    // Without an argument: the file in the data directory that mesh.toml names, which `smesh up` has not written yet.
    let output = mesh.run(&["hooks", "flush"]);
    assert_eq!(output.status.code(), Some(78));
    assert!(stderr(&output).contains("data/hook.toml") && stderr(&output).contains("smesh up"));
}

#[test]
fn written_files_are_reported_as_json() {
    let mesh = Mesh::init();
    let json = |args: &[&str]| -> serde_json::Value {
        let output = mesh.run(args);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let wrote = json(&[
        "--json",
        "init",
        "--slurm-conf",
        "slurm.conf",
        "-o",
        "other/mesh.toml",
    ]);
    assert_eq!(wrote["cluster"], "testbed");
    assert_eq!(wrote["wrote"][0], "other/mesh.toml");
    assert_eq!(wrote["wrote"].as_array().unwrap().len(), 3);
    let plan = json(&[
        "--json",
        "hooks",
        "install",
        "scripts",
        "--slurm-conf",
        "slurm.conf",
    ]);
    let script = plan["hooks"][0]["script"].as_str().unwrap();
    assert!(std::path::Path::new(script).is_file(), "{script}");
}

#[test]
fn over_rest_hooks_are_read_from_slurm_conf_and_the_doctor_names_slurmrestd() {
    let mesh = Mesh::init();
    let conf = fs::read_to_string(mesh.path("slurm.conf")).unwrap();
    let site = conf + "PrologSlurmctld=/site/prolog\n";
    fs::write(mesh.path("slurm.conf"), site).unwrap();
    let config = fs::read_to_string(mesh.path("mesh.toml")).unwrap();
    let rest = "[slurm]\nsource = \"rest\"\nrest_url = \"unix:///nowhere/slurmrestd\"\n";
    fs::write(mesh.path("mesh.toml"), config.replace("[slurm]\n", rest)).unwrap();
    let plan = mesh.run(&["hooks", "print", "--json"]);
    assert!(
        stdout(&plan).contains("--chain /site/prolog"),
        "the site's own program is kept: {plan:?}"
    );
    let doctor = mesh.run(&["doctor", "--json"]);
    assert_eq!(doctor.status.code(), Some(1));
    let found = stdout(&doctor);
    let slurm = found
        .lines()
        .find(|line| line.contains("\"check\":\"slurmrestd\""))
        .unwrap_or_else(|| panic!("{found}"));
    assert!(slurm.contains("rest_url"), "{slurm}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_filter_of_a_running_process_is_shown_and_changed() {
    let mesh = Mesh::started();
    let log_level = |args: &[&str]| mesh.run(&[&["log-level"], args].concat());
    let before = stdout(&log_level(&[])).trim().to_owned();
    let changed = stdout(&log_level(&["warn,ledger=debug"]));
    assert!(changed.contains(&format!("(it was {before})")), "{changed}");
    assert!(stdout(&log_level(&[])).contains("ledger=debug"));
    let wrong = log_level(&["=nonsense="]);
    assert_eq!(wrong.status.code(), Some(1), "{}", stdout(&wrong));
    assert!(stderr(&wrong).contains("filter"), "{}", stderr(&wrong));
}

#[test]
fn a_report_is_printed_again_and_again() {
    use std::io::{BufRead as _, BufReader};

    /// Ends the command also if the test fails.
    struct Watching(std::process::Child);
    impl Drop for Watching {
        fn drop(&mut self) {
            drop(self.0.kill());
            drop(self.0.wait());
        }
    }

    let mesh = Mesh::started();
    let child = mesh
        .smesh(&["cost", "report", "--watch", "--interval", "1s"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut child = Watching(child);
    let lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let (sender, times) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let times = lines.map_while(Result::ok);
        let mut times = times.filter(|line| line.starts_with("as of "));
        times.try_for_each(|line| sender.send(line))
    });
    let deadline = std::time::Duration::from_secs(60);
    let mut times: Vec<String> = (0..3)
        .map(|_| times.recv_timeout(deadline).unwrap())
        .collect();
    drop(child);
    times.dedup();
    assert_eq!(times.len(), 3, "{times:?}");
    for refused in [["--format", "csv"], ["--interval", "10ms"], ["-o", "x"]] {
        let output = mesh.run(&[&["cost", "report", "--watch"], &refused[..]].concat());
        assert_eq!(output.status.code(), Some(64), "{output:?}");
    }
}
