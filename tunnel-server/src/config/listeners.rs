//! What the settings of the listeners must agree in: addresses, proxies, and where credentials may pass unencrypted.

use std::net::SocketAddr;

use tunnel_ops::config_value::listeners_overlap;
use tunnel_ops::settings::{GivenSettings, Setting};

use super::{ConfigFault, Settings, Source, setting};

/// Checks the settings of the listeners.
pub(super) fn check(source: &Source, settings: &Settings, faults: &mut Vec<ConfigFault>) {
    check_addresses(source, settings, faults);
    check_proxies(source, settings, faults);
    check_plain(source, settings, faults);
}

/// Whether tunnel clients connect to the public listener alone: it takes them by a name, and theirs has the same address.
pub(super) fn is_one(settings: &Settings) -> bool {
    !settings.tunnel_host.is_empty() && settings.tunnel_listen == settings.public_listen
}

/// Rejects listeners with overlapping addresses: each would get some of the other's connections, or the second could not
/// be bound.
fn check_addresses(source: &Source, settings: &Settings, faults: &mut Vec<ConfigFault>) {
    let mut listeners = vec![
        (&setting::tunnel_listen, settings.tunnel_listen),
        (&setting::public_listen, settings.public_listen),
        (&setting::admin_listen, settings.admin_listen),
    ];
    listeners.extend(
        settings
            .peer_listen
            .map(|address| (&setting::peer_listen, address)),
    );
    for (index, listener) in listeners.iter().enumerate() {
        for other in listeners.iter().skip(index + 1) {
            let are_for_clients = index == 0 && other.0.key == setting::public_listen.key;
            if listeners_overlap(listener.1, other.1) && !(are_for_clients && is_one(settings)) {
                let advice = match are_for_clients {
                    true => {
                        "give each listener its own port, or give both the same address and name the host of tunnel \
                             clients in --tunnel-host"
                    }
                    false => "give each listener its own port",
                };
                faults.push(overlap(source, *listener, *other, advice));
            }
        }
    }
}

/// The fault of overlapping listeners, reported at a setting that was given rather than at a default.
fn overlap(
    source: &Source,
    (setting, address): (&Setting, SocketAddr),
    (other_setting, other): (&Setting, SocketAddr),
    advice: &str,
) -> ConfigFault {
    let (origin, other_origin) = (source.origin(setting), source.origin(other_setting));
    let (origin, own, other_name, theirs) = match other_origin.is_given() {
        true => (other_origin, other, origin, address),
        false => (origin, address, other_origin, other),
    };
    let other_name = other_name.mention_or_default();
    let problem = format!("{own} overlaps with {theirs} of {other_name}: {advice}");
    ConfigFault::Value { origin, problem }
}

/// Rejects PROXY headers that nobody may send.
fn check_proxies(source: &Source, settings: &Settings, faults: &mut Vec<ConfigFault>) {
    let expected = [
        (&setting::proxy_protocol, settings.proxy_protocol),
        (
            &setting::tunnel_proxy_protocol,
            settings.tunnel_proxy_protocol,
        ),
    ];
    for (setting, is_expected) in expected {
        if is_expected && settings.trusted_proxies.is_empty() {
            let problem = "no peer may send a PROXY header: name the proxies in --trusted-proxies";
            faults.push(source.fault(setting, problem));
        }
    }
    if settings.tunnel_proxy_protocol && is_one(settings) {
        let problem = "there is one listener for both: give --proxy-protocol instead";
        faults.push(source.fault(&setting::tunnel_proxy_protocol, problem));
    }
}

/// Rejects plain HTTP for tunnel clients where their credentials would be readable, or could not be shown.
fn check_plain(source: &Source, settings: &Settings, faults: &mut Vec<ConfigFault>) {
    if settings.tunnel_tls {
        return;
    }
    let is_local = settings.tunnel_listen.ip().is_loopback()
        && (settings.tunnel_host.is_empty() || settings.public_listen.ip().is_loopback());
    if settings.trusted_proxies.is_empty() && !is_local {
        let problem = "tunnel clients' credentials would pass the network unencrypted: name the proxies that terminate TLS \
                       in --trusted-proxies, or listen on a loopback address";
        faults.push(source.fault(&setting::tunnel_tls, problem));
    }
    if settings.client_ca.is_some() {
        let problem = "client certificates need TLS up to this server: leave out --tunnel-tls, and have the load balancer \
                       pass TLS through";
        faults.push(source.fault(&setting::client_ca, problem));
    }
}
