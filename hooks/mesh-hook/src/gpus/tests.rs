use std::os::unix::fs::symlink;

use proptest::prelude::*;

use super::*;

const SOON: Duration = Duration::from_secs(10);

fn environment(pairs: &[(&str, &str)]) -> Environment {
    let pairs = pairs.iter();
    pairs
        .map(|(name, value)| ((*name).into(), (*value).into()))
        .collect()
}

fn change(begins: bool, job: u32, gpus: &[u32]) -> GpuChange {
    GpuChange {
        begins,
        job,
        gpus: gpus.iter().copied().collect(),
        shared: false,
        called_at: SystemTime::now().duration_since(UNIX_EPOCH).unwrap(),
    }
}

struct Node {
    parent: tempfile::TempDir,
    map: GpuMap,
}

impl Node {
    fn new(order: &str) -> Self {
        let parent = tempfile::tempdir().unwrap();
        let map = format!("dcgm:{}", parent.path().join("gpu").display());
        Self {
            map: GpuMap::parse(&map, order).unwrap(),
            parent,
        }
    }

    fn record(&self, change: &GpuChange) {
        record(&self.map, change, Instant::now() + SOON).unwrap();
    }

    /// Names and texts of all files.
    fn files(&self) -> BTreeMap<String, String> {
        let entries = fs::read_dir(&self.map.folder).unwrap();
        let named = entries.map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, fs::read_to_string(entry.path()).unwrap())
        });
        named.collect()
    }

    fn assert(&self, expected: &[(&str, &str)]) {
        let expected = expected.iter();
        let expected: BTreeMap<_, _> = expected
            .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
            .collect();
        assert_eq!(self.files(), expected);
    }
}

#[test]
fn a_job_is_in_the_files_of_its_gpus_from_its_beginning_to_its_end() {
    let node = Node::new("");
    node.record(&change(true, 7, &[0, 1]));
    node.record(&change(true, 8, &[3]));
    node.assert(&[("0", "7\n"), ("1", "7\n"), ("3", "8\n")]);
    let mode = |name| fs::metadata(node.map.folder.join(name)).unwrap().mode() & 0o777;
    assert_eq!((mode(""), mode("0")), (0o755, 0o644));
    node.record(&change(false, 7, &[0, 1]));
    node.assert(&[("0", "\n"), ("1", "\n"), ("3", "8\n")]);
}

#[test]
fn jobs_that_share_a_gpu_have_a_line_each_and_a_crashed_one_leaves_none() {
    let node = Node::new("");
    // As configured, or as the environment says.
    let map = GpuMap {
        shared: true,
        ..node.map.clone()
    };
    for job in [3, 4] {
        record(&map, &change(true, job, &[1]), Instant::now() + SOON).unwrap();
    }
    node.assert(&[("1", "3\n4\n")]);
    for job in [3, 4] {
        node.record(&change(false, job, &[1]));
    }
    let shared = |begins, job| GpuChange {
        shared: true,
        ..change(begins, job, &[0])
    };
    for job in [7, 8, 7] {
        node.record(&shared(true, job));
    }
    node.assert(&[("0", "7\n8\n"), ("1", "\n")]);
    node.record(&shared(false, 7));
    node.assert(&[("0", "8\n"), ("1", "\n")]);
    // 8 ends without an Epilog. The next job has the GPU alone.
    node.record(&change(true, 9, &[0]));
    node.assert(&[("0", "9\n"), ("1", "\n")]);
    // A late Epilog of 8 takes nothing from 9.
    node.record(&shared(false, 8));
    assert_eq!(node.files()["0"], "9\n");
}

#[test]
fn slurms_order_and_mig_have_names_of_their_own() {
    let node = Node::new("0:1, 1:0,2:3.7");
    node.record(&change(true, 7, &[0, 2, 5]));
    node.assert(&[("1", "7\n"), ("3.7", "7\n"), ("5", "7\n")]);
    // The end finds the job, whatever the order is then.
    let map = GpuMap {
        order: BTreeMap::new(),
        ..node.map.clone()
    };
    record(&map, &change(false, 7, &[0, 2, 5]), Instant::now() + SOON).unwrap();
    node.assert(&[("1", "\n"), ("3.7", "\n"), ("5", "\n")]);
}

#[test]
fn a_beginning_that_is_later_than_its_end_maps_nothing() {
    let node = Node::new("");
    node.record(&change(true, 6, &[0]));
    let late = change(true, 7, &[1]);
    node.record(&change(false, 7, &[1]));
    node.record(&late);
    assert!(!node.files().contains_key("1"));
    // The job was requeued and runs again.
    node.record(&change(true, 7, &[1]));
    assert_eq!(node.files()["1"], "7\n");
    // And again, after an attempt without Epilog.
    node.record(&change(true, 7, &[2]));
    assert_eq!(
        (node.files()["1"].as_str(), node.files()["2"].as_str()),
        ("\n", "7\n")
    );
    for job in 100..300 {
        node.record(&change(false, job, &[1]));
    }
    assert_eq!(node.files()[ENDED].lines().count(), MAX_ENDED);
}

#[test]
fn what_a_crash_left_is_written_over() {
    let node = Node::new("");
    node.record(&change(true, 7, &[0]));
    fs::write(node.map.folder.join(".0.new"), "half of a lon").unwrap();
    node.record(&change(false, 7, &[0]));
    node.assert(&[("0", "\n")]);
}

#[test]
fn a_folder_that_is_missing_or_open_to_others_is_not_used() {
    let node = Node::new("");
    // Nodes without GPUs have no such folder.
    node.record(&change(false, 7, &[0]));
    assert!(!node.map.folder.exists());
    let fails = |folder: PathBuf| {
        let map = GpuMap {
            folder,
            ..node.map.clone()
        };
        record(&map, &change(true, 7, &[0]), Instant::now() + SOON).unwrap_err()
    };
    let at = |name: &str| node.parent.path().join(name);
    assert_eq!(fails(at("absent/gpu")).kind(), io::ErrorKind::NotFound);
    fs::create_dir(at("open")).unwrap();
    fs::set_permissions(at("open"), fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(fails(at("open")).kind(), io::ErrorKind::PermissionDenied);
    symlink(at("open"), at("link")).unwrap();
    fails(at("link"));
    fs::write(at("file"), "").unwrap();
    fails(at("file"));
    // One file that cannot be replaced does not keep the others from it.
    node.record(&change(true, 7, &[0]));
    fs::create_dir(node.map.folder.join("1")).unwrap();
    let both = change(true, 8, &[0, 1, 2]);
    record(&node.map, &both, Instant::now() + SOON).unwrap_err();
    let text = |name| fs::read_to_string(node.map.folder.join(name)).unwrap();
    assert_eq!((text("0"), text("2")), ("8\n".into(), "8\n".into()));
}

#[test]
fn a_call_that_hangs_does_not_hold_up_others_for_long() {
    let node = Node::new("");
    let begins = change(true, 7, &[0]);
    node.record(&begins);
    let holder = Folder::open(&node.map, false).unwrap().unwrap();
    holder.lock(Instant::now()).unwrap();
    let short = Instant::now() + Duration::from_millis(50);
    let error = record(&node.map, &begins, short).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    drop(holder);
    node.record(&begins);
}

#[test]
fn the_gpus_are_those_that_slurm_names() {
    let at = SystemTime::now();
    let gpus = |hook: &str, pairs: &[(&str, &str)]| {
        let found = change_of(hook, &environment(pairs), at)?;
        Some((found.gpus.into_iter().collect::<Vec<_>>(), found.shared))
    };
    let job = ("SLURM_JOB_ID", "7");
    let whole = [
        job,
        ("SLURM_JOB_GPUS", "2,3"),
        ("CUDA_VISIBLE_DEVICES", "0,1"),
    ];
    assert_eq!(gpus("Prolog", &whole), Some((vec![2, 3], false)));
    assert_eq!(gpus("Epilog", &whole), Some((vec![2, 3], false)));
    assert_eq!(gpus("TaskProlog", &whole), None);
    assert_eq!(
        gpus("Prolog", &[job, ("SLURM_JOB_GPUS", "0-2,x")]),
        Some((vec![0, 1, 2], false))
    );
    assert_eq!(
        gpus("Prolog", &[job, ("CUDA_VISIBLE_DEVICES", "1")]),
        Some((vec![1], true))
    );
    let mps = [
        job,
        ("SLURM_JOB_GPUS", "1"),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "20"),
    ];
    assert_eq!(gpus("Prolog", &mps), Some((vec![1], true)));
    for pairs in [
        &[job][..],
        &[("SLURM_JOB_GPUS", "1")],
        &[job, ("SLURM_JOB_GPUS", "")],
        &[job, ("CUDA_VISIBLE_DEVICES", "MIG-0a1b,NoDevFiles")],
    ] {
        assert_eq!(gpus("Prolog", pairs), None, "{pairs:?}");
    }
    assert!(
        gpus("Prolog", &[job, ("SLURM_JOB_GPUS", "0-4294967295")])
            .unwrap()
            .0
            .len()
            <= 1024
    );
}

#[test]
fn each_fault_of_the_keys_names_its_key() {
    for (map, order, key) in [
        ("/run/gpu", "", "gpu_map"),
        ("dcgm:run/gpu", "", "gpu_map"),
        ("amd:/run/gpu", "", "gpu_map"),
        ("dcgm:/run/gpu", "0", "gpu_order"),
        ("dcgm:/run/gpu", "0:1.2.3", "gpu_order"),
        ("dcgm:/run/gpu", "0:../1", "gpu_order"),
        ("dcgm:/run/gpu", "x:1", "gpu_order"),
    ] {
        assert_eq!(
            GpuMap::parse(map, order).unwrap_err().0,
            key,
            "{map} {order}"
        );
    }
}

proptest! {
    #[test]
    fn a_job_that_began_and_ended_leaves_the_others(text in "([0-9]{0,3}\n){0,5}", job in 1000u32..2000) {
        let begun = with_job(&text, job);
        prop_assert!(begun.lines().all(|line| !line.is_empty()));
        let ended = without_job(&begun, job).unwrap();
        let jobs = |text: &str| text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect::<BTreeSet<_>>();
        prop_assert_eq!(jobs(&ended), jobs(&text));
        prop_assert_eq!(without_job(&ended, job), None);
    }
}
