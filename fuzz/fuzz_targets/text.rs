//! Output of squeue, sacct, scontrol, sinfo and sacctmgr, or any other text: gives records or an error, never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| slurm_client::fuzzing::text(&String::from_utf8_lossy(data)));
