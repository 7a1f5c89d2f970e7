//! Submits one job to Slurm, or acts on one, as its owner.

use clap::Parser as _;
use slurm_submit::program::{Arguments, run};

fn main() -> anyhow::Result<()> {
    run(&Arguments::parse())
}
