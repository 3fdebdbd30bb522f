//! One route of the table: from a request that it takes to the response.
//!
//! ```text
//!   request ─▶ segment values ─▶ target: upstreams, or a direct response ─▶ rewrite ─▶ forward
//!                  │ refused                                                response ◀────┘
//!                  └─▶ problem ─▶ a response that the page may read (CORS), or the front door's
//! ```

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use http::request::Parts;
use http::{Method, Response};
use tunnel_http::answer::ProblemDetail;
use tunnel_ops::task::Owned;
use tunnel_proto::control::{RouteState, RouteSummary};
use tunnel_proto::problem::{Hop, Problem, Reason};

use crate::config::{RouteAction, RouteConfig, UpstreamOptions, UpstreamsConfig};
use crate::direct_response::{RoutedBody, vary_by_origin};
use crate::metrics::RouteMetrics;
use crate::summary::{self, RouteStatus, UpstreamStatus};
use crate::template::{RefusedSegment, Template};
use crate::upstream::{
    RoutedRequest, Upstream, UpstreamCache, UpstreamError, UpstreamSet, UpstreamShared,
    UpstreamState,
};
use crate::url::UpstreamUrl;

/// A route that takes requests. Exchanges hold the route that took theirs, so that a reload changes nothing for them.
pub struct Route {
    config: RouteConfig,
    target: Target,
    /// Whether requests and responses pass without a check or change, as most do.
    is_plain: bool,
    /// What a page learns of a problem.
    problem_detail: ProblemDetail,
    metrics: Arc<RouteMetrics>,
}

/// Where a route sends requests.
enum Target {
    Upstreams(Arc<UpstreamSet>),
    /// The upstream whose URL the path fills in.
    Template(Template, Arc<UpstreamCache>),
    /// Nowhere: the configuration has the response.
    Direct,
}

/// The target that was resolved for one request.
enum Resolved<'a> {
    Upstreams(&'a UpstreamSet),
    Upstream(Arc<Upstream>),
    Direct(Box<Response<RoutedBody>>),
}

/// The task that keeps upstreams in order (idle connections, changed names, health checks); it ends with its last
/// holder.
pub(crate) type Supervision = Arc<Owned<()>>;

/// A route in the table.
pub(crate) struct TableEntry {
    pub(crate) route: Arc<Route>,
    /// Held by the table alone, so that upstreams which no route leads to any more are not checked because an
    /// exchange still holds its route. `None` for a direct response.
    pub(crate) supervision: Option<Supervision>,
}

/// What a new table can take over from the one before.
///
/// It is built on the thread that moves bytes, in time linear in the number of routes: unchanged targets are found at
/// the front.
pub(crate) struct Previous<'a> {
    upstreams: VecDeque<Supervised<UpstreamSet>>,
    templates: VecDeque<Supervised<UpstreamCache>>,
    /// The upstreams of each route, by its name.
    by_route: HashMap<&'a str, &'a UpstreamSet>,
    /// The state of each upstream, as the first route that has it knows it.
    states: HashMap<&'a UpstreamUrl, UpstreamState>,
}

/// A target with the task that supervises it.
struct Supervised<T> {
    target: Arc<T>,
    supervision: Supervision,
}

impl<'a> Previous<'a> {
    /// The targets of these routes.
    pub(crate) fn new(entries: &'a [TableEntry]) -> Self {
        let mut previous = Self {
            upstreams: VecDeque::new(),
            templates: VecDeque::new(),
            by_route: HashMap::new(),
            states: HashMap::new(),
        };
        for TableEntry { route, supervision } in entries {
            let Some(supervision) = supervision.clone() else {
                continue;
            };
            match &route.target {
                Target::Upstreams(upstreams) => {
                    previous.by_route.insert(route.name(), upstreams);
                    for (url, state) in upstreams.states() {
                        previous.states.entry(url).or_insert(state);
                    }
                    let target = Arc::clone(upstreams);
                    previous.upstreams.push_back(Supervised {
                        target,
                        supervision,
                    });
                }
                Target::Template(_, cache) => {
                    let target = Arc::clone(cache);
                    previous.templates.push_back(Supervised {
                        target,
                        supervision,
                    });
                }
                Target::Direct => {}
            }
        }
        previous
    }

    /// Removes and returns the first target for which `matches` holds. Each goes to one route, since routes share no
    /// connections.
    fn take<T>(
        targets: &mut VecDeque<Supervised<T>>,
        matches: impl Fn(&T) -> bool,
    ) -> Option<Supervised<T>> {
        let index = targets.iter().position(|one| matches(&one.target))?;
        targets.remove(index)
    }

    /// The state of an upstream: as the route with this name knows it, or else as another does.
    fn state(&self, route: &str, url: &UpstreamUrl) -> Option<UpstreamState> {
        let own = self.by_route.get(route).and_then(|own| own.state(url));
        own.or_else(|| self.states.get(url).copied())
    }

    fn upstreams(
        &mut self,
        route: &str,
        config: &UpstreamsConfig,
        shared: &Arc<UpstreamShared>,
    ) -> Result<Supervised<UpstreamSet>, UpstreamError> {
        if let Some(same) = Self::take(&mut self.upstreams, |one| one.is_from(config)) {
            return Ok(same);
        }
        let state = |url: &UpstreamUrl| self.state(route, url);
        let target = Arc::new(UpstreamSet::new(config, shared, state)?);
        let set = Arc::clone(&target);
        let task = Owned::spawn("upstream", async move { set.supervise().await });
        Ok(Supervised {
            target,
            supervision: Arc::new(task),
        })
    }

    fn template(
        &mut self,
        template: &Template,
        options: &UpstreamOptions,
        shared: &Arc<UpstreamShared>,
    ) -> Result<Supervised<UpstreamCache>, UpstreamError> {
        let scheme = template.base().scheme();
        if let Some(same) = Self::take(&mut self.templates, |one| one.is_from(scheme, options)) {
            return Ok(same);
        }
        let target = Arc::new(UpstreamCache::new(scheme, options, shared)?);
        let cache = Arc::clone(&target);
        let task = Owned::spawn("upstream", async move { cache.supervise().await });
        Ok(Supervised {
            target,
            supervision: Arc::new(task),
        })
    }
}

impl TableEntry {
    /// A route as configured, with the targets of `previous` that fit. Must be called within a runtime.
    ///
    /// # Errors
    /// When its upstreams cannot be made as configured.
    pub(crate) fn new(
        config: RouteConfig,
        previous: &mut Previous<'_>,
        shared: &Arc<UpstreamShared>,
        problem_detail: ProblemDetail,
        metrics: Arc<RouteMetrics>,
    ) -> Result<Self, UpstreamError> {
        let (target, supervision) = match &config.action {
            RouteAction::Upstreams(upstreams) => {
                let Supervised {
                    target,
                    supervision,
                } = previous.upstreams(&config.name, upstreams, shared)?;
                (Target::Upstreams(target), Some(supervision))
            }
            RouteAction::Template(template, options) => {
                let Supervised {
                    target,
                    supervision,
                } = previous.template(template, options, shared)?;
                (
                    Target::Template(template.clone(), target),
                    Some(supervision),
                )
            }
            RouteAction::Respond(_) | RouteAction::Deny(_) => (Target::Direct, None),
        };
        let is_plain = config.values.is_empty()
            && config.cors.is_none()
            && config.rewrite.keeps_request()
            && config.rewrite.response.is_empty();
        let route = Route {
            is_plain,
            target,
            problem_detail,
            metrics,
            config,
        };
        Ok(Self {
            route: Arc::new(route),
            supervision,
        })
    }
}

impl Route {
    /// Its configuration.
    pub(crate) fn config(&self) -> &RouteConfig {
        &self.config
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// Its summary for the tunnel server, with or without the URLs of its upstreams.
    pub(crate) fn summary(&self, with_upstreams: bool) -> RouteSummary {
        let shows_target = with_upstreams || matches!(self.target, Target::Direct);
        let to = shows_target.then(|| summary::target(&self.config));
        RouteSummary {
            name: self.name().to_owned(),
            matches: summary::conditions(&self.config),
            to: to.unwrap_or_default(),
            state: match &self.target {
                Target::Upstreams(upstreams) => {
                    summary::state(&upstreams.conditions().collect::<Vec<_>>())
                }
                Target::Template(..) => RouteState::Unknown,
                Target::Direct => RouteState::Own,
            },
        }
    }

    /// Itself and its upstreams as they are now.
    pub(crate) fn status(&self) -> RouteStatus {
        let summary = self.summary(true);
        let upstreams = match &self.target {
            Target::Upstreams(upstreams) => upstreams
                .states()
                .zip(upstreams.conditions())
                .map(|((url, _), condition)| UpstreamStatus {
                    url: url.to_string(),
                    state: condition.name(),
                })
                .collect(),
            Target::Template(..) | Target::Direct => Vec::new(),
        };
        RouteStatus {
            name: summary.name,
            matches: summary.matches,
            to: summary.to,
            state: summary.state.name(),
            upstreams,
        }
    }

    /// Its metrics.
    pub fn metrics(&self) -> &RouteMetrics {
        &self.metrics
    }

    /// Responds to a request that it takes. A problem that became a response here, since the route has CORS, is put
    /// into `reported` as well.
    ///
    /// # Errors
    /// With the problem for which there is no response.
    pub async fn respond(
        &self,
        request: &mut RoutedRequest,
        reported: &mut Option<Problem>,
    ) -> Result<Response<RoutedBody>, Problem> {
        if self.is_plain
            && let Target::Upstreams(upstreams) = &self.target
        {
            let response = upstreams.forward(request).await?;
            return Ok(response.map(RoutedBody::Upstream));
        }
        // Boxed, so that the future of a plain route has no room for it.
        Box::pin(self.respond_by_rules(request, reported)).await
    }

    async fn respond_by_rules(
        &self,
        request: &mut RoutedRequest,
        reported: &mut Option<Problem>,
    ) -> Result<Response<RoutedBody>, Problem> {
        let method = request.head().method.clone();
        // Before a rewrite changes `Origin`.
        let cors = self.config.cors.as_ref();
        let page = cors.and_then(|policy| policy.page(request.head()));
        let (problem, page) = match (self.forward(request, &method).await, page) {
            (Ok(response), Some(page)) if matches!(self.target, Target::Direct) => {
                return Ok(page.allow_response(response));
            }
            (Ok(mut response), None) if cors.is_some() && matches!(self.target, Target::Direct) => {
                vary_by_origin(response.headers_mut());
                return Ok(response);
            }
            (Err(problem), Some(page)) => (problem, page),
            (result, _) => return result,
        };
        let response = page.problem_response(&problem, self.problem_detail, &method);
        *reported = Some(problem);
        Ok(response)
    }

    async fn forward(
        &self,
        request: &mut RoutedRequest,
        method: &Method,
    ) -> Result<Response<RoutedBody>, Problem> {
        let resolved = self.resolve(request.head(), method)?;
        if !self.config.rewrite.keeps_request() {
            let applied = self.config.rewrite.apply(request.head_mut());
            applied.map_err(|refused| self.segment_refused(refused))?;
        }
        let mut response = match resolved {
            Resolved::Upstreams(upstreams) => {
                (upstreams.forward(request).await?).map(RoutedBody::Upstream)
            }
            Resolved::Upstream(upstream) => {
                (upstream.forward(request).await?).map(RoutedBody::Upstream)
            }
            Resolved::Direct(response) => *response,
        };
        self.config
            .rewrite
            .apply_to_response(response.headers_mut())?;
        Ok(response)
    }

    fn resolve(&self, head: &Parts, method: &Method) -> Result<Resolved<'_>, Problem> {
        let path = head.uri.path().as_bytes();
        let refused = |segment: RefusedSegment| self.segment_refused(segment);
        self.config.check_values(path).map_err(refused)?;
        match (&self.target, &self.config.action) {
            (Target::Upstreams(upstreams), _) => Ok(Resolved::Upstreams(upstreams)),
            (Target::Template(template, cache), _) => {
                let url = template.fill(path).map_err(refused)?;
                Ok(Resolved::Upstream(cache.get(url)))
            }
            // A success would tell the platform client that the protocol has changed.
            (Target::Direct, RouteAction::Respond(direct))
                if *method == Method::CONNECT && direct.status.is_success() =>
            {
                let detail = format!("route `{}` answers by itself", self.config.name);
                Err(Problem::new(Hop::Client, Reason::UpgradeFailed, detail))
            }
            (Target::Direct, RouteAction::Respond(direct)) => {
                Ok(Resolved::Direct(Box::new(direct.response(method))))
            }
            (Target::Direct, RouteAction::Deny(text)) => {
                let text = String::from(text.clone());
                Err(Problem::new(Hop::Client, Reason::RouteDenied, text))
            }
            (Target::Direct, _) => {
                let detail = "a route that leads nowhere";
                Err(Problem::new(Hop::Client, Reason::InternalError, detail))
            }
        }
    }

    /// The problem of a path that the route refuses for this reason.
    fn segment_refused(&self, why: impl fmt::Display) -> Problem {
        let detail = format!("route `{}`: {why}", self.config.name);
        Problem::new(Hop::Client, Reason::SegmentRefused, detail)
    }
}
