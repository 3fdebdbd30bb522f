//! Checks what a route does with a request: its upstreams and their options, or its direct response.

use std::time::Duration;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderValue, StatusCode};
use rustls_pki_types::ServerName;
use toml::Spanned;
use tunnel_ops::config_value::SizeText;
use tunnel_ops::tls_files::{Identity, TlsFilesError};

use super::check::Checker;
use super::raw::{RawDirectResponse, RawEjection, RawHealth, RawMember, RawRoute, RawTls, Text};
use super::{
    DirectResponse, EjectionOptions, HealthOptions, RouteAction, TlsOptions, UpstreamHttp,
    UpstreamMember, UpstreamOptions, UpstreamsConfig,
};
use crate::pattern::Pattern;
use crate::template::Template;
use crate::url::{UpstreamScheme, UpstreamUrl};

/// Most upstreams of one route.
const MEMBERS_MAX: usize = 64;

/// Longest content of a direct response, and longest text of a denial, in bytes.
const DIRECT_RESPONSE_BYTES: usize = 64 * 1024;
const DENY_BYTES: usize = 256;

impl Checker<'_> {
    pub(super) fn action(&mut self, raw: &RawRoute, path: Option<&Pattern>) -> Option<RouteAction> {
        let given = [
            raw.upstream.is_some(),
            raw.upstreams.is_some(),
            raw.respond.is_some(),
            raw.deny.is_some(),
        ];
        if given.iter().filter(|given| **given).count() != 1 {
            let problem = "expected exactly one of `upstream`, `upstreams`, `respond` and `deny`";
            self.fault(raw.name.span(), "route", problem);
            return None;
        }
        if let Some(answer) = &raw.respond {
            self.check_direct(raw);
            return self.direct_response(answer).map(RouteAction::Respond);
        }
        if let Some(denial) = &raw.deny {
            self.check_direct(raw);
            if let Some(changes) = &raw.response_headers {
                let problem = "a denial is not an upstream's answer: leave it out";
                self.fault(changes.span(), "route.response_headers", problem);
            }
            return self.deny(denial);
        }
        match &raw.upstream {
            Some(url) if Template::is_template(url.get_ref()) => self.template(raw, url, path),
            _ => self.upstreams(raw),
        }
    }

    /// Reports settings of upstreams on a route that has none.
    fn check_direct(&mut self, raw: &RawRoute) {
        let spans = [
            ("strip_prefix", raw.strip_prefix.as_ref().map(Spanned::span)),
            (
                "replace_prefix",
                raw.replace_prefix.as_ref().map(Spanned::span),
            ),
            ("host_header", raw.host_header.as_ref().map(Spanned::span)),
            (
                "request_headers",
                raw.request_headers.as_ref().map(Spanned::span),
            ),
            (
                "connect_timeout",
                raw.connect_timeout.as_ref().map(Spanned::span),
            ),
            ("head_timeout", raw.head_timeout.as_ref().map(Spanned::span)),
            ("idle_timeout", raw.idle_timeout.as_ref().map(Spanned::span)),
            ("max_body", raw.max_body.as_ref().map(Spanned::span)),
            ("http", raw.http.as_ref().map(Spanned::span)),
            ("tls", raw.tls.as_ref().map(Spanned::span)),
            ("health", raw.health.as_ref().map(Spanned::span)),
            ("ejection", raw.ejection.as_ref().map(Spanned::span)),
        ];
        for (key, span) in spans {
            if let Some(span) = span {
                let problem = "this route asks no upstream: leave it out";
                self.fault(span, &format!("route.{key}"), problem);
            }
        }
    }

    fn direct_response(&mut self, raw: &Spanned<RawDirectResponse>) -> Option<DirectResponse> {
        let raw = raw.get_ref();
        let status = self.count::<200, 599>(raw.status.as_ref(), "route.respond.status", 200);
        let content_type = match &raw.content_type {
            None => Some(None),
            Some(text) => {
                let value = HeaderValue::from_str(text.get_ref()).ok();
                if value.is_none() {
                    let problem = "expected a media type such as `text/plain`";
                    self.fault(text.span(), "route.respond.content_type", problem);
                }
                value.map(Some)
            }
        };
        let body = raw.body.as_ref();
        let bytes = body.map_or("", |body| body.get_ref()).as_bytes();
        let has_none = |status: u32| matches!(status, 204 | 205 | 304);
        let problem = match status {
            Some(status) if has_none(status) && !bytes.is_empty() => {
                "an answer with this status has no body"
            }
            _ if bytes.len() > DIRECT_RESPONSE_BYTES => "a fixed answer has at most 64 KiB",
            _ => "",
        };
        if let Some(body) = body.filter(|_| !problem.is_empty()) {
            self.fault(body.span(), "route.respond.body", problem);
            return None;
        }
        Some(DirectResponse {
            status: StatusCode::from_u16(u16::try_from(status?).ok()?).ok()?,
            content_type: content_type?,
            body: Bytes::copy_from_slice(bytes),
        })
    }

    fn deny(&mut self, denial: &Text) -> Option<RouteAction> {
        let text = denial.get_ref();
        // The text is sent in a field.
        let fits = text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        if text.is_empty() || text.len() > DENY_BYTES || !fits {
            let problem = "expected a few words for whoever is denied, in ASCII, at most 256 bytes";
            self.fault(denial.span(), "route.deny", problem);
            return None;
        }
        Some(RouteAction::Deny(text.as_str().into()))
    }

    fn template(
        &mut self,
        raw: &RawRoute,
        url: &Text,
        path: Option<&Pattern>,
    ) -> Option<RouteAction> {
        let unknown = "a template's upstreams are known only from requests: omit it";
        for (key, span) in [
            ("route.health", raw.health.as_ref().map(Spanned::span)),
            ("route.ejection", raw.ejection.as_ref().map(Spanned::span)),
        ] {
            if let Some(span) = span {
                self.fault(span, key, unknown);
            }
        }
        let template = path.and_then(|path| {
            let parsed = Template::parse(url.get_ref(), path);
            parsed
                .map_err(|error| self.fault(url.span(), "route.upstream", error.to_string()))
                .ok()
        });
        let is_https = template
            .as_ref()
            .is_some_and(|template| is_https(template.base()));
        let options = self.options(raw, is_https);
        Some(RouteAction::Template(template?, options?))
    }

    fn upstreams(&mut self, raw: &RawRoute) -> Option<RouteAction> {
        let members = match (&raw.upstream, &raw.upstreams) {
            (Some(url), _) => {
                let url = self.take(url, "route.upstream");
                url.map(|url| vec![UpstreamMember { url, weight: 1 }])
            }
            (None, Some(members)) => self.members(members),
            (None, None) => None,
        };
        let has_https = (members.iter().flatten()).any(|member| is_https(&member.url));
        let options = self.options(raw, has_https);
        let health = match &raw.health {
            Some(health) => self.health(health.get_ref(), raw).map(Some),
            None => Some(None),
        };
        let ejection = match &raw.ejection {
            Some(ejection) => self.ejection(ejection.get_ref()).map(Some),
            None => Some(None),
        };
        Some(RouteAction::Upstreams(UpstreamsConfig {
            members: members?,
            options: options?,
            health: health?,
            ejection: ejection?,
        }))
    }

    fn members(&mut self, given: &Spanned<Vec<RawMember>>) -> Option<Vec<UpstreamMember>> {
        let before = self.faults.len();
        if !(1..=MEMBERS_MAX).contains(&given.get_ref().len()) {
            let problem = format!("expected one to {MEMBERS_MAX} upstreams");
            self.fault(given.span(), "route.upstreams", problem);
        }
        let mut members: Vec<UpstreamMember> = Vec::new();
        for raw in given.get_ref() {
            if Template::is_template(raw.url.get_ref()) {
                let problem = "only a single `upstream` can be made of segments";
                self.fault(raw.url.span(), "route.upstreams.url", problem);
                continue;
            }
            let url: Option<UpstreamUrl> = self.take(&raw.url, "route.upstreams.url");
            let weight = raw.weight.as_ref();
            let weight = self.count::<1, 1_000>(weight, "route.upstreams.weight", 1);
            let (Some(url), Some(weight)) = (url, weight) else {
                continue;
            };
            if members.iter().any(|member| member.url == url) {
                let problem = format!("`{url}` is listed twice: use `weight`");
                self.fault(raw.url.span(), "route.upstreams.url", problem);
            }
            members.push(UpstreamMember { url, weight });
        }
        (self.faults.len() == before).then_some(members)
    }

    fn options(&mut self, raw: &RawRoute, has_https: bool) -> Option<UpstreamOptions> {
        let (connect, head) = (self.defaults.connect_timeout, self.defaults.head_timeout);
        let connect = self.duration(
            raw.connect_timeout.as_ref(),
            "route.connect_timeout",
            connect,
        );
        let head = self.duration(raw.head_timeout.as_ref(), "route.head_timeout", head);
        let idle = raw.idle_timeout.as_ref();
        let idle = match idle {
            Some(_) => self
                .duration(idle, "route.idle_timeout", Duration::ZERO)
                .map(Some),
            None => Some(None),
        };
        let max_body = match &raw.max_body {
            Some(text) => self
                .take::<SizeText>(text, "route.max_body")
                .map(u64::from)
                .map(Some),
            None => Some(None),
        };
        let tls = match (&raw.tls, has_https) {
            (Some(tls), false) => {
                // The upstream may have a fault of its own.
                let problem = "no upstream of this route is spoken to over TLS: use https:// or leave this out";
                self.fault(tls.span(), "route.tls", problem);
                None
            }
            (tls, true) => self.tls(tls.as_ref(), raw).map(Some),
            (None, false) => Some(None),
        };
        let http = self.http(raw, has_https);
        Some(UpstreamOptions {
            connect_timeout: connect?,
            head_timeout: head?,
            idle_timeout: idle?,
            max_body: max_body?,
            tls: tls?,
            http: http?,
        })
    }

    fn http(&mut self, raw: &RawRoute, has_https: bool) -> Option<UpstreamHttp> {
        let Some(http) = &raw.http else {
            return Some(self.defaults.http);
        };
        if !has_https {
            let problem = "only https:// upstreams have a choice: http:// and unix: get HTTP/1.1, h2c:// gets \
                           HTTP/2";
            self.fault(http.span(), "route.http", problem);
            return None;
        }
        self.take(http, "route.http")
    }

    fn tls(&mut self, raw: Option<&Spanned<RawTls>>, route: &RawRoute) -> Option<TlsOptions> {
        let before = self.faults.len();
        let span = raw.map_or_else(|| route.name.span(), Spanned::span);
        let raw = raw.map(Spanned::get_ref);
        let ca_file = raw.and_then(|raw| raw.ca_file.as_ref());
        let insecure = raw.and_then(|raw| raw.insecure.as_ref());
        let insecure = insecure.is_some_and(|insecure| *insecure.get_ref());
        if let Some(ca_file) = ca_file.filter(|_| insecure) {
            let problem = "any certificate will do, as `insecure` says: leave one of them out";
            self.fault(ca_file.span(), "route.tls.ca_file", problem);
        }
        let roots = if self.reads_files && !insecure {
            let default = self.defaults.ca_file.clone();
            let path = ca_file.map(|path| path.get_ref().clone()).or(default);
            let span = ca_file.map_or(span, Spanned::span);
            self.roots(path.as_deref(), span)
        } else {
            None
        };
        let identity = raw.and_then(|raw| self.identity(raw));
        let server_name = raw.and_then(|raw| raw.server_name.as_ref());
        if let Some(name) = server_name
            && ServerName::try_from(name.get_ref().as_str()).is_err()
        {
            let problem = "expected a host name or an address";
            self.fault(name.span(), "route.tls.server_name", problem);
        }
        (self.faults.len() == before).then(|| TlsOptions {
            roots,
            server_name: server_name.map(|name| name.get_ref().as_str().into()),
            identity,
            insecure,
        })
    }

    fn identity(&mut self, raw: &RawTls) -> Option<Identity> {
        let (cert, key) = match (&raw.client_cert, &raw.client_key) {
            (None, None) => return None,
            (Some(cert), Some(key)) => (cert, key),
            (Some(cert), None) => {
                let problem = "its key is missing: give client_key as well";
                self.fault(cert.span(), "route.tls.client_cert", problem);
                return None;
            }
            (None, Some(key)) => {
                let problem = "its certificate is missing: give client_cert as well";
                self.fault(key.span(), "route.tls.client_key", problem);
                return None;
            }
        };
        if !self.reads_files {
            return None;
        }
        let mut faults: Vec<TlsFilesError> = Vec::new();
        let identity = Identity::load_or_fault(cert.get_ref(), key.get_ref(), &mut faults);
        for fault in faults {
            let is_of_key = fault.file().is_some_and(|file| file.path == key.get_ref());
            let (span, name) = match is_of_key {
                true => (key.span(), "route.tls.client_key"),
                false => (cert.span(), "route.tls.client_cert"),
            };
            self.fault(span, name, fault.to_string());
        }
        identity
    }

    fn health(&mut self, raw: &RawHealth, route: &RawRoute) -> Option<HealthOptions> {
        let path = raw.path.get_ref();
        let path = PathAndQuery::try_from(path.as_str()).ok();
        let path = path.filter(|path| path.as_str().starts_with('/'));
        if path.is_none() {
            let problem = "expected a path such as `/healthz`";
            self.fault(raw.path.span(), "route.health.path", problem);
        }
        let seconds = Duration::from_secs;
        let interval = self.duration(raw.interval.as_ref(), "route.health.interval", seconds(5));
        let timeout = self.duration(raw.timeout.as_ref(), "route.health.timeout", seconds(2));
        let unhealthy = raw.unhealthy_after.as_ref();
        let unhealthy = self.count::<1, 100>(unhealthy, "route.health.unhealthy_after", 3);
        let healthy = raw.healthy_after.as_ref();
        let healthy = self.count::<1, 100>(healthy, "route.health.healthy_after", 2);
        if let (Some(interval), Some(text)) = (interval, &raw.interval)
            && interval < Duration::from_millis(100)
        {
            let problem = "at least 100ms";
            self.fault(text.span(), "route.health.interval", problem);
        }
        Some(HealthOptions {
            path: path?,
            host: named_host(route),
            interval: interval?,
            timeout: timeout?,
            unhealthy_after: unhealthy?,
            healthy_after: healthy?,
        })
    }

    fn ejection(&mut self, raw: &RawEjection) -> Option<EjectionOptions> {
        let after = self.count::<1, 1_000>(raw.after.as_ref(), "route.ejection.after", 5);
        let default = Duration::from_secs(10);
        let duration = self.duration(raw.duration.as_ref(), "route.ejection.for", default);
        Some(EjectionOptions {
            after: after?,
            duration: duration?,
        })
    }
}

/// The `Host` that the route gives to all requests, if it does; it is checked elsewhere.
fn named_host(route: &RawRoute) -> Option<HeaderValue> {
    let name = route.host_header.as_ref()?.get_ref().as_str();
    let is_name = !matches!(name, "keep" | "upstream");
    is_name.then(|| HeaderValue::from_str(name).ok()).flatten()
}

fn is_https(url: &UpstreamUrl) -> bool {
    url.scheme() == UpstreamScheme::Https
}
