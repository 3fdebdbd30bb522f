//! One route at work: what becomes of a request that it takes.
//!
//! ```text
//!   request ─▶ values of segments ─▶ upstream (or an answer of its own) ─▶ head changed ─▶ asked
//!                  │ refused                                                  answer ◀──────┘
//!                  └─▶ problem ─▶ told to the page that asks, or to the tunnel server
//! ```

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use http::request::Parts;
use http::{Method, Response};
use tunnel_proto::control::{RouteState, RouteSummary};
use tunnel_proto::problem::{Hop, Problem, Reason};

use crate::config::{RouteAction, RouteConfig, UpstreamOptions, UpstreamsConfig};
use crate::leads::{LeadParts, OnDemand, Tending, Upstreams};
use crate::metrics::RouteMetrics;
use crate::own_answer::{AnswerBody, vary_by_origin};
use crate::summary;
use crate::template::{RefusedSegment, Template};
use crate::upstream::{Asked, KnownUpstream, Upstream, UpstreamError};
use crate::url::UpstreamUrl;

/// A route that requests are sent by.
pub struct Route {
    config: RouteConfig,
    lead: Lead,
    /// Nothing is checked or changed: the way of most requests.
    is_plain: bool,
    metrics: Arc<RouteMetrics>,
}

/// Where a route leads.
enum Lead {
    Upstreams(Arc<Upstreams>),
    Template(Template, Arc<OnDemand>),
    /// To nobody: what it answers stands in the configuration.
    Own,
}

/// Whom a request is for.
enum Whom<'a> {
    Upstreams(&'a Upstreams),
    OnDemand(Arc<Upstream>),
    Nobody(Box<Response<AnswerBody>>),
}

/// A route in the table.
pub(crate) struct InForce {
    /// The route, which exchanges hold as well.
    pub(crate) route: Arc<Route>,
    /// Only the table holds this; `None` when the route leads to nobody.
    pub(crate) tending: Option<Tending>,
}

/// What a reload can take over of the routes before it.
///
/// It is made on the thread that moves bytes, and so takes no longer than there are routes: what nobody changed
/// is found at the front.
pub(crate) struct Earlier<'a> {
    upstreams: VecDeque<Tended<Upstreams>>,
    on_demand: VecDeque<Tended<OnDemand>>,
    /// The upstreams of each route, by its name.
    of_route: HashMap<&'a str, &'a Upstreams>,
    /// What the first route that has an upstream knows of it.
    known: HashMap<&'a UpstreamUrl, KnownUpstream>,
}

struct Tended<T> {
    there: Arc<T>,
    tending: Tending,
}

impl<'a> Earlier<'a> {
    /// All that these routes lead to.
    pub(crate) fn of(routes: &'a [InForce]) -> Self {
        let mut earlier = Self {
            upstreams: VecDeque::new(),
            on_demand: VecDeque::new(),
            of_route: HashMap::new(),
            known: HashMap::new(),
        };
        for InForce { route, tending } in routes {
            let Some(tending) = tending.clone() else {
                continue;
            };
            match &route.lead {
                Lead::Upstreams(upstreams) => {
                    earlier.of_route.insert(route.name(), upstreams);
                    for (url, known) in upstreams.all_known() {
                        earlier.known.entry(url).or_insert(known);
                    }
                    let there = Arc::clone(upstreams);
                    earlier.upstreams.push_back(Tended { there, tending });
                }
                Lead::Template(_, on_demand) => {
                    let there = Arc::clone(on_demand);
                    earlier.on_demand.push_back(Tended { there, tending });
                }
                Lead::Own => {}
            }
        }
        earlier
    }

    /// What is made of the same; each is given to one route, since routes share no connections.
    fn take<T>(those: &mut VecDeque<Tended<T>>, is_same: impl Fn(&T) -> bool) -> Option<Tended<T>> {
        let place = those.iter().position(|one| is_same(&one.there))?;
        those.remove(place)
    }

    /// What is known of an upstream: by the route with this name, or else by another.
    fn known(&self, name: &str, url: &UpstreamUrl) -> Option<KnownUpstream> {
        let own = self.of_route.get(name).and_then(|own| own.known(url));
        own.or_else(|| self.known.get(url).copied())
    }

    fn upstreams(
        &mut self,
        name: &str,
        action: &RouteAction,
        config: &UpstreamsConfig,
        parts: &LeadParts,
    ) -> Result<Tended<Upstreams>, UpstreamError> {
        if let Some(there) = Self::take(&mut self.upstreams, |one| one.is_of(action)) {
            return Ok(there);
        }
        let known = |url: &UpstreamUrl| self.known(name, url);
        let there = Arc::new(Upstreams::new(config, parts, known)?);
        let tending = there.tend();
        Ok(Tended { there, tending })
    }

    fn on_demand(
        &mut self,
        action: &RouteAction,
        (template, options): (&Template, &UpstreamOptions),
        parts: &LeadParts,
    ) -> Result<Tended<OnDemand>, UpstreamError> {
        if let Some(there) = Self::take(&mut self.on_demand, |one| one.is_of(action)) {
            return Ok(there);
        }
        let there = Arc::new(OnDemand::new(template.base().scheme(), options, parts)?);
        let tending = there.tend();
        Ok(Tended { there, tending })
    }
}

impl InForce {
    /// A route as the configuration says, with what is there already of its upstreams. Must be called
    /// within a runtime.
    ///
    /// # Errors
    /// When its upstreams cannot be as it says.
    pub(crate) fn new(
        config: RouteConfig,
        earlier: &mut Earlier<'_>,
        parts: &LeadParts,
        metrics: Arc<RouteMetrics>,
    ) -> Result<Self, UpstreamError> {
        let (lead, tending) = match &config.action {
            RouteAction::Upstreams(upstreams) => {
                let Tended { there, tending } =
                    earlier.upstreams(&config.name, &config.action, upstreams, parts)?;
                (Lead::Upstreams(there), Some(tending))
            }
            RouteAction::Template(template, options) => {
                let Tended { there, tending } =
                    earlier.on_demand(&config.action, (template, options), parts)?;
                (Lead::Template(template.clone(), there), Some(tending))
            }
            RouteAction::Respond(_) | RouteAction::Deny(_) => (Lead::Own, None),
        };
        let is_plain = config.values.is_empty()
            && config.cors.is_none()
            && config.rewrite.keeps_request()
            && config.rewrite.response.is_empty();
        let route = Route {
            is_plain,
            lead,
            metrics,
            config,
        };
        Ok(Self {
            route: Arc::new(route),
            tending,
        })
    }
}

impl Route {
    /// As it stands in the configuration.
    pub(crate) fn config(&self) -> &RouteConfig {
        &self.config
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// What the server is told of it, with or without its upstreams.
    pub(crate) fn summary(&self, with_upstreams: bool) -> RouteSummary {
        let is_told = with_upstreams || matches!(self.lead, Lead::Own);
        let to = is_told.then(|| summary::leads_to(&self.config));
        RouteSummary {
            name: self.name().to_owned(),
            matches: summary::conditions(&self.config),
            to: to.unwrap_or_default(),
            state: match &self.lead {
                Lead::Upstreams(upstreams) => summary::state(&upstreams.conditions()),
                Lead::Template(..) => RouteState::Unknown,
                Lead::Own => RouteState::Own,
            },
        }
    }

    /// What is counted of it.
    pub fn metrics(&self) -> &RouteMetrics {
        &self.metrics
    }

    /// Answers a request that it takes. A problem that a page was told instead of the tunnel server is
    /// in `told`.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn answer(
        &self,
        asked: &mut Asked,
        told: &mut Option<Problem>,
    ) -> Result<Response<AnswerBody>, Problem> {
        if self.is_plain
            && let Lead::Upstreams(upstreams) = &self.lead
        {
            let response = upstreams.ask(asked).await?;
            return Ok(response.map(AnswerBody::Upstream));
        }
        // Whatever is rarer is boxed, so that not every exchange has room for it.
        Box::pin(self.answer_by_rule(asked, told)).await
    }

    async fn answer_by_rule(
        &self,
        asked: &mut Asked,
        told: &mut Option<Problem>,
    ) -> Result<Response<AnswerBody>, Problem> {
        let method = asked.head().method.clone();
        // Before the route changes the field that names it.
        let cors = self.config.cors.as_ref();
        let page = cors.and_then(|policy| policy.page(asked.head()));
        let (problem, page) = match (self.ask(asked, &method).await, page) {
            (Ok(response), Some(page)) if matches!(self.lead, Lead::Own) => {
                return Ok(page.permit(response));
            }
            (Ok(mut response), None) if cors.is_some() && matches!(self.lead, Lead::Own) => {
                vary_by_origin(response.headers_mut());
                return Ok(response);
            }
            (Err(problem), Some(page)) => (problem, page),
            (answered, _) => return answered,
        };
        let answer = page.tell(&problem, &method);
        *told = Some(problem);
        Ok(answer)
    }

    async fn ask(
        &self,
        asked: &mut Asked,
        method: &Method,
    ) -> Result<Response<AnswerBody>, Problem> {
        let whom = self.whom(asked.head(), method)?;
        if !self.config.rewrite.keeps_request() {
            let applied = self.config.rewrite.apply(asked.head_mut());
            applied.map_err(|refused| self.refused(refused))?;
        }
        let mut response = match whom {
            Whom::Upstreams(upstreams) => upstreams.ask(asked).await?.map(AnswerBody::Upstream),
            Whom::OnDemand(upstream) => upstream.ask(asked).await?.map(AnswerBody::Upstream),
            Whom::Nobody(response) => *response,
        };
        self.config
            .rewrite
            .apply_to_answer(response.headers_mut())?;
        Ok(response)
    }

    fn whom(&self, head: &Parts, method: &Method) -> Result<Whom<'_>, Problem> {
        let path = head.uri.path().as_bytes();
        let refused = |segment: RefusedSegment| self.refused(segment);
        self.config.check_values(path).map_err(refused)?;
        match (&self.lead, &self.config.action) {
            (Lead::Upstreams(upstreams), _) => Ok(Whom::Upstreams(upstreams)),
            (Lead::Template(template, on_demand), _) => {
                let url = template.fill(path).map_err(refused)?;
                Ok(Whom::OnDemand(on_demand.get(url)))
            }
            // As an answer to an upgrade it would say that the protocol is changed.
            (Lead::Own, RouteAction::Respond(answer))
                if *method == Method::CONNECT && answer.status.is_success() =>
            {
                let detail = format!("route `{}` answers by itself", self.config.name);
                Err(Problem::new(Hop::Client, Reason::UpgradeFailed, detail))
            }
            (Lead::Own, RouteAction::Respond(answer)) => {
                Ok(Whom::Nobody(Box::new(answer.respond(method))))
            }
            (Lead::Own, RouteAction::Deny(words)) => {
                let words = String::from(words.clone());
                Err(Problem::new(Hop::Client, Reason::RouteDenied, words))
            }
            (Lead::Own, _) => {
                let detail = "a route that leads nowhere";
                Err(Problem::new(Hop::Client, Reason::InternalError, detail))
            }
        }
    }

    /// The path may not be what it is.
    fn refused(&self, why: impl fmt::Display) -> Problem {
        let detail = format!("route `{}`: {why}", self.config.name);
        Problem::new(Hop::Client, Reason::SegmentRefused, detail)
    }
}
