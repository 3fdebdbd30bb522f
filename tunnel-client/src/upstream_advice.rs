//! What to say to a person at the start if nothing answers at the local service yet.

use std::sync::Arc;

use tunnel_proto::memory::MemoryAccount;
use tunnel_routing::config::{RouteDefaults, UpstreamOptions};
use tunnel_routing::upstream::{Upstream, UpstreamShared};
use tunnel_routing::url::{UpstreamScheme, UpstreamUrl};

/// Connects to a service once. Returns what to do if that fails; `None` if it answers, or is one over TLS, whose
/// certificates are not known here.
pub async fn upstream_advice(url: &UpstreamUrl) -> Option<String> {
    if url.scheme() == UpstreamScheme::Https {
        return None;
    }
    let shared = Arc::new(UpstreamShared::new(&[], MemoryAccount::new(usize::MAX), 1));
    let options = UpstreamOptions::of(&RouteDefaults::default(), None);
    let upstream = Upstream::new(url.clone(), &options, &shared).ok()?;
    let failure = Box::pin(upstream.try_dial()).await.err()?;
    let detail = failure.problem.detail();
    Some(format!(
        "nothing answers there yet ({detail}): start the service, or give its address; requests get 502 until then"
    ))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use testkit::closed_port::closed_port;
    use tokio::net::TcpListener;

    use super::*;

    async fn advice(address: SocketAddr) -> Option<String> {
        let url: UpstreamUrl = format!("http://{address}").parse().unwrap();
        upstream_advice(&url).await
    }

    #[tokio::test]
    async fn a_service_that_is_not_there_is_told_of() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        assert_eq!(advice(listener.local_addr().unwrap()).await, None);
        let absent = advice(closed_port()).await.unwrap();
        assert!(
            absent.contains("nothing answers there yet (http://127.0.0.1:"),
            "{absent}"
        );
    }
}
