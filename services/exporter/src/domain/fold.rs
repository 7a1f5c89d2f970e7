//! Limits the number of series: the keys with the smallest weights are added up as `other`.

use std::collections::BTreeMap;

/// Name of the sum of the folded keys.
pub const OTHER: &str = "other";

/// Keeps at most `max` keys, the last of them [`OTHER`] with the sum of the rest. Returns how many were folded.
pub fn fold<V>(
    mut values: BTreeMap<String, V>,
    max: usize,
    weight: impl Fn(&V) -> u64,
    mut add: impl FnMut(&mut V, &V),
) -> (BTreeMap<String, V>, usize)
where
    V: Default,
{
    let max = max.max(1);
    if values.len() <= max {
        return (values, 0);
    }
    let mut order: Vec<(u64, String)> = values
        .iter()
        .map(|(key, value)| (weight(value), key.clone()))
        .collect();
    // The heaviest first; equal ones by name, so that the same ones stay between two refreshes.
    order.sort_by(|(a, left), (b, right)| b.cmp(a).then_with(|| left.cmp(right)));
    let mut other = V::default();
    let folded = order.split_off(max - 1);
    for (_, key) in &folded {
        if let Some(value) = values.remove(key) {
            add(&mut other, &value);
        }
    }
    // A key may have this name itself.
    add(values.entry(OTHER.to_owned()).or_default(), &other);
    (values, folded.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_are_added_up_and_nothing_is_lost() {
        let values: BTreeMap<String, u64> = (0..10).map(|n| (format!("a{n}"), n)).collect();
        let (kept, folded) = fold(values.clone(), 4, |n| *n, |sum, n| *sum += n);
        assert_eq!(folded, 7);
        assert_eq!(
            kept.iter()
                .map(|(key, n)| (key.as_str(), *n))
                .collect::<Vec<_>>(),
            [("a7", 7), ("a8", 8), ("a9", 9), (OTHER, 21)]
        );
        assert_eq!(fold(values.clone(), 10, |n| *n, |_, _| ()), (values, 0));
    }
}
