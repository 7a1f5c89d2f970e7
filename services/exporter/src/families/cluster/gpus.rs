//! Which job has which GPU: the only metric with a job's id, because GPU metrics have a node and an index, and need it to be joined with.

use super::{Inputs, Page};
use crate::domain::exposition::Kind;

/// Returns how many series were left out.
pub(super) fn jobs(inputs: &Inputs, page: &mut Page<'_>) -> usize {
    const NAME: &str = "mesh_job_gpu_info";
    page.metric(
        NAME,
        Kind::Gauge,
        "GPUs of running jobs. The index is Slurm's, in the order of gres.conf.",
    );
    let mut fits = inputs.max_series / 4;
    let mut left_out = 0;
    for holder in &inputs.gpu_holders {
        let job_id = holder.job_id.to_string();
        let gpus = holder.gpus(inputs.max_series);
        left_out += gpus.len().saturating_sub(fits);
        for (node, gpu) in gpus.iter().take(fits) {
            let labels: [(&str, &str); 5] = [
                ("node", node.as_str()),
                ("gpu", gpu),
                ("job_id", &job_id),
                ("partition", &holder.partition),
                ("account", &holder.account),
            ];
            page.sample(NAME, &labels, 1.0);
        }
        fits = fits.saturating_sub(gpus.len());
    }
    left_out
}
