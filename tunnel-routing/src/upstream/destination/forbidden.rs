//! Addresses that a name may not lead to, in all forms in which IPv6 embeds IPv4.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The kind of an address that is dialled only if the configuration has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AddressKind {
    Unspecified,
    Loopback,
    LinkLocal,
    Metadata,
    Multicast,
    Translator,
}

/// Metadata services of clouds outside of the link-local 169.254.0.0/16: Alibaba, Azure's host, Oracle.
const METADATA_V4: [Ipv4Addr; 3] = [
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(168, 63, 129, 16),
    Ipv4Addr::new(192, 0, 0, 192),
];

/// Metadata services over IPv6: two of Amazon, Google, Scaleway, Oracle, Alibaba, Akamai.
const METADATA_V6: [Ipv6Addr; 7] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42),
    Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe),
    Ipv6Addr::new(0xfd00, 0x100, 0, 0, 0, 0, 0x100, 0x200),
    Ipv6Addr::new(0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 1),
];

/// The kind of a forbidden address; `None` for any other.
pub(super) fn kind(address: IpAddr) -> Option<AddressKind> {
    match address {
        IpAddr::V4(address) => of_v4(address),
        IpAddr::V6(address) => of_v6(address).or_else(|| embedded(address).and_then(of_v4)),
    }
}

fn of_v4(address: Ipv4Addr) -> Option<AddressKind> {
    // 0.0.0.0/8 is "this host on this network" (RFC 1122); systems differ in what they reach by it.
    if address.octets()[0] == 0 {
        Some(AddressKind::Unspecified)
    } else if address.is_loopback() {
        Some(AddressKind::Loopback)
    } else if METADATA_V4.contains(&address) || address == Ipv4Addr::new(169, 254, 169, 254) {
        Some(AddressKind::Metadata)
    } else if address.is_link_local() {
        Some(AddressKind::LinkLocal)
    } else if address.is_multicast() || address.is_broadcast() {
        Some(AddressKind::Multicast)
    } else {
        None
    }
}

fn of_v6(address: Ipv6Addr) -> Option<AddressKind> {
    if address.is_unspecified() {
        Some(AddressKind::Unspecified)
    } else if address.is_loopback() {
        Some(AddressKind::Loopback)
    } else if METADATA_V6.contains(&address) {
        Some(AddressKind::Metadata)
    } else if address.is_unicast_link_local() {
        Some(AddressKind::LinkLocal)
    } else if address.is_multicast() {
        Some(AddressKind::Multicast)
    } else if matches!(address.segments(), [0x64, 0xff9b, 1, ..]) {
        // A network's own NAT64 (RFC 8215): only that network knows where in it the IPv4 address is (RFC 6052 section
        // 2.2).
        Some(AddressKind::Translator)
    } else {
        None
    }
}

/// The IPv4 address that an IPv6 address embeds for a translator or a tunnel.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let v4 = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    match address.segments() {
        // Mapped (::ffff:0:0/96), translated (::ffff:0:0:0/96), and the old compatible form (::/96).
        [0, 0, 0, 0, 0, 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0, 0, 0, 0, 0, 0, high, low] => Some(v4(high, low)),
        // NAT64 with the well-known prefix (RFC 6052).
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(v4(high, low)),
        // 6to4 (RFC 3056).
        [0x2002, high, low, ..] => Some(v4(high, low)),
        // Teredo (RFC 4380), which inverts the bits of the address.
        [0x2001, 0, _, _, _, _, high, low] => Some(v4(!high, !low)),
        _ => None,
    }
}

impl fmt::Display for AddressKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unspecified => "unspecified",
            Self::Loopback => "loopback",
            Self::LinkLocal => "link-local",
            Self::Metadata => "a cloud's metadata service",
            Self::Multicast => "multicast",
            Self::Translator => "a translator's, whose IPv4 address cannot be derived",
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(expected: Option<AddressKind>, addresses: &[&str]) {
        for address in addresses {
            assert_eq!(kind(address.parse().unwrap()), expected, "{address}");
        }
    }

    #[test]
    fn each_kind_is_known_at_its_borders() {
        check(
            Some(AddressKind::Unspecified),
            &["0.0.0.0", "0.255.255.255", "::"],
        );
        check(
            Some(AddressKind::Loopback),
            &["127.0.0.0", "127.255.255.255", "::1"],
        );
        check(
            Some(AddressKind::LinkLocal),
            &["169.254.0.0", "169.254.255.255", "fe80::", "febf:ffff::1"],
        );
        check(
            Some(AddressKind::Metadata),
            &[
                "169.254.169.254",
                "100.100.100.200",
                "168.63.129.16",
                "192.0.0.192",
            ],
        );
        check(
            Some(AddressKind::Metadata),
            &[
                "fd00:ec2::254",
                "fd00:ec2::23",
                "fd20:ce::254",
                "fd00:42::42",
                "fd00:c1::a9fe:a9fe",
                "fd00:100::100:200",
                "fd00:a9fe:a9fe::1",
            ],
        );
        check(
            Some(AddressKind::Translator),
            &[
                "64:ff9b:1::",
                "64:ff9b:1:a9fe:a9:fe00::",
                "64:ff9b:1::169.254.169.254",
                "64:ff9b:1:ffff:ffff:ffff:ffff:ffff",
            ],
        );
        check(
            Some(AddressKind::Multicast),
            &["224.0.0.0", "239.255.255.255", "255.255.255.255", "ff02::1"],
        );
        check(
            None,
            &[
                "1.0.0.0",
                "126.255.255.255",
                "128.0.0.0",
                "169.253.255.255",
                "169.255.0.0",
            ],
        );
        check(
            None,
            &[
                "100.100.100.201",
                "10.0.0.1",
                "fec0::1",
                "fc00::1",
                "2001:db8::1",
                "240.0.0.1",
            ],
        );
    }

    #[test]
    fn no_form_of_ipv6_hides_what_it_carries() {
        check(
            Some(AddressKind::Metadata),
            &[
                "::ffff:169.254.169.254",
                "::ffff:0:169.254.169.254",
                "::169.254.169.254",
                "64:ff9b::169.254.169.254",
                "2002:a9fe:a9fe::1",
                "2001:0:1:2:3:4:5601:5601",
            ],
        );
        check(
            None,
            &[
                "::ffff:10.0.0.1",
                "64:ff9b::10.0.0.1",
                "64:ff9b:2::1",
                "2002:a00:1::1",
            ],
        );
    }

    proptest! {
        #[test]
        fn what_is_forbidden_in_ipv4_is_in_each_form(bits: u32) {
            let address = Ipv4Addr::from_bits(bits);
            let [high, low] = [(bits >> 16) as u16, bits as u16];
            // `::` and `::1` are addresses of their own.
            prop_assume!(bits > 1);
            for form in [
                address.to_ipv6_mapped(),
                Ipv6Addr::new(0, 0, 0, 0, 0, 0, high, low),
                Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
                Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1),
            ] {
                prop_assert_eq!(kind(form.into()), kind(address.into()), "{}", form);
            }
        }
    }
}
