//! Ports of a Slurm cluster.

use std::net::TcpListener;

/// Hundreds of ports to try: below those that the kernel gives to clients, and with different job ids (`tests/cluster/lib/common.sh`).
const HUNDREDS: std::ops::Range<u16> = 220..320;

/// A hundred ports that no other cluster of this machine uses, until dropped.
#[derive(Debug)]
pub struct ClusterPorts {
    base: u16,
    // The last port of the hundred, which no daemon uses: other programs search at the same time, and the daemons bind theirs later.
    _taken: TcpListener,
}

impl ClusterPorts {
    /// Takes the first hundred that is free. That of a cluster which is still being stopped is not.
    ///
    /// # Panics
    /// If there is none.
    pub fn take() -> Self {
        let mut hundreds = HUNDREDS.map(|hundred| hundred * 100);
        hundreds
            .find_map(Self::take_from)
            .expect("a hundred free ports between 22000 and 31999")
    }

    /// First of the hundred, a multiple of 100.
    pub const fn base(&self) -> u16 {
        self.base
    }

    fn take_from(base: u16) -> Option<Self> {
        let bind = |offset| TcpListener::bind(("127.0.0.1", base + offset));
        let taken = bind(99).ok()?;
        (0..99).all(|offset| bind(offset).is_ok()).then_some(Self {
            base,
            _taken: taken,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_have_the_same_ports_and_used_ones_are_left_out() {
        let first = ClusterPorts::take();
        let second = ClusterPorts::take();
        assert_ne!(first.base(), second.base());
        let base = second.base();
        // A slurmd that is still being stopped.
        let _slurmd = TcpListener::bind(("127.0.0.1", base + 11)).unwrap();
        drop(second);
        assert_ne!(ClusterPorts::take().base(), base);
    }
}
