//! Shares and licenses.

use mesh_events::proto::mesh::metrics::v1::Share;

use crate::domain::exposition::{Exposition, Kind};
use crate::families::{Inputs, LICENSES, float};

/// Shares of accounts and users. As in the original, not of those that inherit them.
pub(super) fn shares(inputs: &Inputs, page: &mut Exposition) {
    type Value = fn(&Share) -> Option<f64>;
    let values: [(&str, &str, Value); 5] = [
        ("fairshare", "Fairshare factor", |share| share.fairshare),
        ("fairshare_norm_shares", "Part of the shares", |share| {
            Some(share.norm_shares)
        }),
        ("fairshare_norm_usage", "Part of the use", |share| {
            Some(share.norm_usage)
        }),
        ("fairshare_raw_shares", "Shares", |share| {
            Some(float(share.raw_shares))
        }),
        ("fairshare_raw_usage_cpu_seconds", "Use, decayed", |share| {
            Some(float(share.raw_usage))
        }),
    ];
    let shares = &inputs.scheduler.shares;
    for is_user in [false, true] {
        for (name, help, value) in values {
            let prefix = if is_user {
                "slurm_user"
            } else {
                "slurm_account"
            };
            let name = format!("{prefix}_{name}");
            page.metric(&name, Kind::Gauge, help);
            let of_kind = shares
                .iter()
                .filter(|share| share.user.is_empty() != is_user);
            for share in of_kind.filter(|share| share.raw_shares > 0) {
                let Some(value) = value(share) else { continue };
                let mut labels = vec![("account", share.account.as_str())];
                if is_user {
                    labels.push(("user", &share.user));
                }
                page.sample(&name, &labels, value);
            }
        }
    }
}

pub(super) fn licenses(inputs: &Inputs, page: &mut Exposition) {
    for (name, help, value) in LICENSES {
        let name = format!("slurm_license_{name}");
        page.metric(&name, Kind::Gauge, help);
        for license in &inputs.scheduler.licenses {
            page.sample(&name, &[("license", &license.name)], float(value(license)));
        }
    }
}
