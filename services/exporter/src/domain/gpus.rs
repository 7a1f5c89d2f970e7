//! Which run holds which GPU of which node.

use mesh_events::proto::mesh::job::v1::NodeAllocation;
use slurm_types::HostList;

/// A run that holds GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuHolder {
    /// Job id.
    pub job_id: u32,
    /// Partition.
    pub partition: String,
    /// Account.
    pub account: String,
    /// Its GPUs in the stored form.
    pub places: String,
}

impl GpuHolder {
    /// Node and Slurm's index of each GPU, at most `max`.
    pub fn gpus(&self, max: usize) -> Vec<(String, &str)> {
        let groups = self.places.split(';').filter_map(|of| of.split_once('='));
        let mut gpus = Vec::new();
        for (nodes, indices) in groups {
            let nodes = HostList::expand_up_to(nodes, max).unwrap_or_default();
            for node in nodes {
                gpus.extend(indices.split(',').map(|index| (node.clone(), index)));
            }
        }
        gpus.truncate(max);
        gpus
    }
}

/// The stored form: `n3=0,1;n[4-5]=0`. Empty without GPUs, and if Slurm did not report their indices.
pub fn places(allocations: &[NodeAllocation]) -> String {
    let with_gpus = allocations.iter().filter(|of| !of.gpu_indices.is_empty());
    let groups = with_gpus.map(|of| {
        let indices: Vec<String> = of.gpu_indices.iter().map(u32::to_string).collect();
        format!("{}={}", of.nodes, indices.join(","))
    });
    groups.collect::<Vec<_>>().join(";")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocation(nodes: &str, gpu_indices: &[u32]) -> NodeAllocation {
        NodeAllocation {
            nodes: nodes.to_owned(),
            gpu_indices: gpu_indices.to_vec(),
            ..NodeAllocation::default()
        }
    }

    #[test]
    fn every_gpu_of_every_node_comes_back() {
        let allocations = [
            allocation("n3", &[0, 1]),
            allocation("n4", &[]),
            allocation("n[5-6]", &[3]),
        ];
        let holder = GpuHolder {
            places: places(&allocations),
            ..GpuHolder::default()
        };
        let gpus = holder.gpus(100);
        let gpus: Vec<_> = gpus
            .iter()
            .map(|(node, gpu)| (node.as_str(), *gpu))
            .collect();
        assert_eq!(gpus, [("n3", "0"), ("n3", "1"), ("n5", "3"), ("n6", "3")]);
        assert_eq!(holder.gpus(3).len(), 3);
        assert_eq!(places(&[allocation("n3", &[])]), "");
        assert!(GpuHolder::default().gpus(100).is_empty());
    }
}
