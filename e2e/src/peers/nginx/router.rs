//! The router of today: nginx, configured to do what clusters use it for now.
//!
//! | match | leads to |
//! |---|---|
//! | prefix `/app-proxy` | the App-Proxy; where that is away, an answer of its own with CORS |
//! | prefix `/workflows/` | the workflows' server over TLS, without that prefix |
//! | pattern `/webhooks/([^/]+)/([^/]+)` | the Event Source that the two segments name |
//! | `/readyz`, `/healthz` | `ok` |
//! | anything else | 404 |
//!
//! What it does not set is nginx's own choice: 1 MiB for a body, 60 s between two reads, answers
//! and requests held back in buffers, and segments that are decoded before they are pasted into
//! the name of a host.

use std::net::SocketAddr;

use super::Nginx;

/// The domain below which Event Sources have their names.
pub const ZONE: &str = "svc.cluster.local";

/// The services behind the router.
#[derive(Clone, Copy, Debug)]
pub struct RouterUpstreams {
    /// The App-Proxy.
    pub app_proxy: SocketAddr,
    /// The workflows' server, which speaks TLS.
    pub workflows: SocketAddr,
    /// The name server that knows the Event Sources.
    pub names: SocketAddr,
    /// The most seconds between two reads from an upstream; nginx's own choice is 60.
    pub read_seconds: u32,
}

impl Nginx {
    /// The router of today. It lets the browser page at `https://g.example.com` see why the
    /// App-Proxy does not answer.
    pub async fn router(upstreams: &RouterUpstreams) -> Self {
        let RouterUpstreams {
            app_proxy,
            workflows,
            names,
            read_seconds,
        } = upstreams;
        let cors = "add_header Access-Control-Allow-Origin https://g.example.com always;\n\
            add_header Access-Control-Allow-Methods GET,HEAD,PUT,PATCH,POST,DELETE always;\n\
            add_header Access-Control-Allow-Headers content-type,x-access-token always;\n\
            add_header Access-Control-Allow-Credentials true always;";
        Self::configured(|address| {
            format!(
                "gzip on; gzip_comp_level 6; gzip_min_length 1000;\n\
                 gzip_types text/plain application/xml application/json;\n\
                 port_in_redirect off; resolver {names} valid=10s ipv6=off;\n\
                 proxy_read_timeout {read_seconds}s;\n\
                 server {{ listen {address};\n\
                 location /app-proxy {{ proxy_pass http://{app_proxy}; proxy_http_version 1.1;\n\
                 proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade;\n\
                 chunked_transfer_encoding off; error_page 502 = @away; }}\n\
                 location @away {{ {cors}\n\
                 if ($request_method = OPTIONS) {{ {cors} return 204; }} return 502; }}\n\
                 location /workflows/ {{ rewrite ^/workflows/(.*)$ /$1 break;\n\
                 proxy_pass https://{workflows}; proxy_http_version 1.1;\n\
                 proxy_set_header Connection ''; chunked_transfer_encoding off; }}\n\
                 location ~ /webhooks/([^/]+)/([^/]+) {{\n\
                 proxy_pass http://$2-eventsource-svc.$1.{ZONE}:80; }}\n\
                 location /readyz {{ return 200 ok; }}\n\
                 location /healthz {{ return 200 ok; }}\n\
                 }}"
            )
        })
        .await
    }
}
