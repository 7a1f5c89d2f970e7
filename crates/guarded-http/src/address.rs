//! Addresses that a request may reach.
//!
//! Users who may add an endpoint must not thereby reach internal addresses: metadata services, other tenants,
//! slurmctld, the mesh's own ports. So only global unicast addresses are reached, unless the operator allows a
//! subnet. IPv6 forms that carry an IPv4 address are covered. Mapped and compatible ones are checked as that address.
//! Translated and tunnelled ones (NAT64, 6to4, Teredo, ISATAP-like) are always refused, as an unknown gateway decides
//! where they lead.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use url::{Host, Url};

/// A text that is not a subnet.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is no subnet (write an address and a prefix length, e.g. 10.1.0.0/16)")]
pub struct InvalidSubnet(String);

/// Parses a subnet that an operator allows, e.g. `10.1.0.0/16` or `fd00::/8`.
///
/// # Errors
/// If it is none.
pub fn parse_subnet(text: &str) -> Result<IpNet, InvalidSubnet> {
    text.parse().map_err(|_| InvalidSubnet(text.to_owned()))
}

/// True if packets to the address go to the subnet.
pub fn is_in(subnet: &IpNet, address: IpAddr) -> bool {
    subnet.contains(&canonical(address))
}

/// Why an address is forbidden. `None` if it is not.
pub fn is_forbidden(address: IpAddr) -> Option<&'static str> {
    match canonical(address) {
        IpAddr::V4(address) => forbidden_v4(address),
        IpAddr::V6(address) => forbidden_v6(address),
    }
}

/// Checks an address against the subnets that the operator allows.
///
/// # Errors
/// Why the address is forbidden.
pub fn check(address: IpAddr, allowed: &[IpNet]) -> Result<(), &'static str> {
    match is_forbidden(address) {
        Some(why) if !allowed.iter().any(|subnet| is_in(subnet, address)) => Err(why),
        _ => Ok(()),
    }
}

/// Checks the host of a URL if it is an address. Names are checked when they are resolved.
///
/// # Errors
/// The address, and why it may not be reached.
pub fn check_literal(url: &Url, allowed: &[IpNet]) -> Result<(), (IpAddr, &'static str)> {
    let address = match url.host() {
        Some(Host::Ipv4(address)) => IpAddr::from(address),
        Some(Host::Ipv6(address)) => address.into(),
        Some(Host::Domain(_)) | None => return Ok(()),
    };
    check(address, allowed).map_err(|why| (address, why))
}

/// The address that packets are sent to: `::ffff:a.b.c.d` and the deprecated `::a.b.c.d` are IPv4.
fn canonical(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else {
        return address;
    };
    if let Some(v4) = v6.to_ipv4_mapped() {
        return v4.into();
    }
    let bits = v6.to_bits();
    // ::/96 without `::` and `::1` (RFC 4291 §2.5.5.1).
    if bits > 0xffff && bits >> 32 == 0 {
        Ipv4Addr::from_bits((bits & 0xffff_ffff) as u32).into()
    } else {
        address
    }
}

/// IANA IPv4 Special-Purpose Address Registry, plus multicast.
const V4: &[(Ipv4Net, &str)] = &[
    (v4(0, 0, 0, 0, 8), "this network"),
    (v4(10, 0, 0, 0, 8), "private"),
    (v4(100, 64, 0, 0, 10), "carrier-grade NAT"),
    (v4(127, 0, 0, 0, 8), "loopback"),
    (v4(169, 254, 0, 0, 16), "link-local, cloud metadata"),
    (v4(172, 16, 0, 0, 12), "private"),
    (v4(192, 0, 0, 0, 24), "protocol assignments, cloud metadata"),
    (v4(192, 0, 2, 0, 24), "documentation"),
    (v4(192, 31, 196, 0, 24), "AS112"),
    (v4(192, 52, 193, 0, 24), "AMT"),
    (v4(192, 88, 99, 0, 24), "6to4 relay"),
    (v4(192, 168, 0, 0, 16), "private"),
    (v4(192, 175, 48, 0, 24), "AS112"),
    (v4(198, 18, 0, 0, 15), "benchmarking"),
    (v4(198, 51, 100, 0, 24), "documentation"),
    (v4(203, 0, 113, 0, 24), "documentation"),
    // Azure's platform address: globally routable in form, but answered inside every virtual network.
    (v4(168, 63, 129, 16, 32), "cloud metadata"),
    (v4(224, 0, 0, 0, 4), "multicast"),
    (v4(240, 0, 0, 0, 4), "reserved, broadcast"),
];

fn forbidden_v4(address: Ipv4Addr) -> Option<&'static str> {
    let known = V4.iter().find(|(subnet, _)| subnet.contains(&address));
    known.map(|(_, why)| *why)
}

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix)
}

const fn v6([a, b, c, d, e, f, g, h]: [u16; 8], prefix: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, d, e, f, g, h), prefix)
}

/// Special ranges inside 2000::/3. Everything outside it is refused anyway.
const V6: &[(Ipv6Net, &str)] = &[
    // Teredo 2001::/32, ORCHID, benchmarking and others.
    (
        v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 23),
        "Teredo, protocol assignments",
    ),
    (v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32), "documentation"),
    (v6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16), "6to4"),
    (v6([0x2620, 0x4f, 0x8000, 0, 0, 0, 0, 0], 48), "AS112"),
    (v6([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20), "documentation"),
    (v6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96), "NAT64"),
    (v6([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48), "NAT64"),
    (v6([0, 0, 0, 0, 0, 0, 0, 1], 128), "loopback"),
    (v6([0, 0, 0, 0, 0, 0, 0, 0], 128), "unspecified"),
    (v6([0x100, 0, 0, 0, 0, 0, 0, 0], 64), "discard"),
    (
        v6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7),
        "private, cloud metadata",
    ),
    (v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10), "link-local"),
    (v6([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10), "site-local"),
    (v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8), "multicast"),
];

fn forbidden_v6(address: Ipv6Addr) -> Option<&'static str> {
    if let Some((_, why)) = V6.iter().find(|(subnet, _)| subnet.contains(&address)) {
        return Some(why);
    }
    // Only 2000::/3 is global unicast (RFC 4291 §2.4). The rest is unassigned, including SRv6 5f00::/16.
    if address.to_bits() >> 125 != 0b001 {
        return Some("not global unicast");
    }
    // ISATAP (RFC 5214 §6.1): interface id 0000:5efe or 0200:5efe, followed by an IPv4 address that a gateway
    // connects to.
    let segments = address.segments();
    (segments[5] == 0x5efe && matches!(segments[4], 0 | 0x200)).then_some("ISATAP")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inner_addresses_are_forbidden_in_every_form() {
        let forbidden = [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "10.255.255.255",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.0.1",
            "169.254.169.254",
            "169.254.170.2",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.1",
            "192.0.0.192",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.0.1",
            "192.168.255.255",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.7",
            "203.0.113.9",
            "168.63.129.16",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "100.100.100.200",
            "::",
            "::1",
            "::2",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "::10.1.2.3",
            "::ffff:0:10.0.0.1",
            "64:ff9b::a00:1",
            "64:ff9b::169.254.169.254",
            "64:ff9b:1::a00:1",
            "2002:7f00:1::",
            "2002:a9fe:a9fe::1",
            "2001::1",
            "2001:0:4136:e378:8000:63bf:3fff:fdd2",
            "2001:db8::1",
            "2001:20::1",
            "3fff::1",
            "100::1",
            "5f00::1",
            "fc00::1",
            "fd00:ec2::254",
            "fdff::1",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "ff02::1",
            "ff0e::1",
            "4000::1",
            "2600::5efe:a00:1",
            "2600::200:5efe:10.0.0.1",
        ];
        for text in forbidden {
            let address: IpAddr = text.parse().unwrap();
            assert!(is_forbidden(address).is_some(), "{text} must be forbidden");
        }
    }

    #[test]
    fn public_addresses_are_allowed_up_to_the_borders_of_the_ranges() {
        let allowed = [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "168.63.129.15",
            "223.255.255.255",
            "::ffff:1.1.1.1",
            "2606:4700:4700::1111",
            "2a00:1450::1",
            "2001:4860:4860::8888",
            "2003::1",
        ];
        for text in allowed {
            assert_eq!(
                is_forbidden(text.parse().unwrap()),
                None,
                "{text} must be allowed"
            );
        }
    }

    #[test]
    fn an_allowed_subnet_opens_exactly_itself() {
        let allowed: Vec<IpNet> = vec![
            "10.1.0.0/16".parse().unwrap(),
            "fd00::/8".parse().unwrap(),
            "127.0.0.1/32".parse().unwrap(),
        ];
        for text in [
            "10.1.2.3",
            "::ffff:10.1.2.3",
            "fd12::1",
            "127.0.0.1",
            "8.8.8.8",
        ] {
            assert_eq!(check(text.parse().unwrap(), &allowed), Ok(()), "{text}");
        }
        for text in [
            "10.2.0.1",
            "127.0.0.2",
            "fc00::1",
            "64:ff9b::a01:203",
            "2002:a01:203::",
        ] {
            assert!(check(text.parse().unwrap(), &allowed).is_err(), "{text}");
        }
        let everything: IpNet = "0.0.0.0/0".parse().unwrap();
        assert!(is_in(&everything, "192.168.1.1".parse().unwrap()));
        assert!(
            !is_in(&everything, "fd00::1".parse().unwrap()),
            "an IPv4 subnet says nothing about IPv6"
        );
    }

    #[test]
    fn texts_that_are_no_subnets_are_refused() {
        for text in [
            "10.0.0.0",
            "10.0.0.0/33",
            "fd00::/129",
            "host/8",
            "10.0.0.0/-1",
            "",
        ] {
            assert!(parse_subnet(text).is_err(), "{text}");
        }
        assert_eq!(
            parse_subnet("10.0.0.0/8").unwrap().to_string(),
            "10.0.0.0/8"
        );
    }
}
