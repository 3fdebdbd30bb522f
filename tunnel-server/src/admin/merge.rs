//! One view of a runtime from the views of several server nodes.

use std::cmp::Reverse;

use super::view::{RuntimeView, RuntimesPage};

/// One view from those of all nodes, in any order, each of one runtime; `None` if there is none. What exists once only is
/// that of the node with the latest claim.
pub(super) fn runtime(mut views: Vec<RuntimeView>) -> Option<RuntimeView> {
    views.sort_by_key(|view| Reverse(view.epoch));
    views.into_iter().reduce(|mut merged, mut other| {
        for host in other.hosts {
            if !merged.hosts.contains(&host) {
                merged.hosts.push(host);
            }
        }
        merged.managed |= other.managed;
        merged.tokens = merged.tokens.or(other.tokens);
        merged.nodes.append(&mut other.nodes);
        merged.nodes.sort_unstable();
        merged.nodes.dedup();
        merged.online |= other.online;
        merged.online_since = merged
            .online_since
            .into_iter()
            .chain(other.online_since)
            .min();
        merged.last_online = merged.last_online.max(other.last_online);
        merged.sessions.append(&mut other.sessions);
        merged.open_exchanges += other.open_exchanges;
        merged.requests += other.requests;
        merged.bytes_in += other.bytes_in;
        merged.bytes_out += other.bytes_out;
        merged.waiting += other.waiting;
        merged.last_problem = latest(merged.last_problem, other.last_problem, |one| one.at);
        merged.last_session_end = latest(merged.last_session_end, other.last_session_end, |one| {
            one.at
        });
        merged.last_refusal = latest(merged.last_refusal, other.last_refusal, |one| one.at);
        merged
    })
}

/// One page from those of all nodes. Each has the first runtimes behind one label, and so has the result.
pub(super) fn page(pages: Vec<RuntimesPage>, limit: usize) -> RuntimesPage {
    let is_cut = pages.iter().any(|page| page.next.is_some());
    let mut views: Vec<_> = pages.into_iter().flat_map(|page| page.runtimes).collect();
    views.sort_by(|a, b| a.label.cmp(&b.label));
    let groups = views.chunk_by(|a, b| a.label == b.label);
    let mut runtimes: Vec<_> = groups.filter_map(|group| runtime(group.to_vec())).collect();
    let is_last = runtimes.len() <= limit && !is_cut;
    runtimes.truncate(limit);
    let next = runtimes
        .last()
        .filter(|_| !is_last)
        .map(|view| view.label.clone());
    RuntimesPage {
        runtimes,
        next,
        unanswered: Vec::new(),
    }
}

fn latest<T, K: Ord>(one: Option<T>, other: Option<T>, at: impl Fn(&T) -> K) -> Option<T> {
    one.into_iter().chain(other).max_by_key(at)
}
