//! The first node of a host list. Pure. The hook needs nothing else of host lists.

/// The first node of a list such as `n[3-5,7],gpu1` or `r[0-1]n[00-15]`. `None` if the text is not a host list.
pub fn first(list: &str) -> Option<String> {
    let mut name = String::new();
    let mut rest = list;
    loop {
        let end = rest.find(['[', ',']).unwrap_or(rest.len());
        name.push_str(&rest[..end]);
        if !rest[end..].starts_with('[') {
            break;
        }
        let (range, after) = rest[end + 1..].split_once(']')?;
        name.push_str(range.split([',', '-']).next()?);
        rest = after;
    }
    (!name.is_empty() && !name.contains(']')).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_every_form_is_found() {
        for (list, expected) in [
            ("n1", Some("n1")),
            ("n1,n2", Some("n1")),
            ("n[3-5,7],gpu1", Some("n3")),
            ("n[007-010]", Some("n007")),
            ("r[0-1]n[00-15]-ib,x", Some("r0n00-ib")),
            ("a-b[2],c", Some("a-b2")),
            ("", None),
            ("n[1-2", None),
            ("n]1", None),
        ] {
            assert_eq!(first(list).as_deref(), expected, "{list}");
        }
    }
}
