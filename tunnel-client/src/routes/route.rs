//! One route at work: what becomes of a request that it takes.
//!
//! ```text
//!   request ─▶ values of segments ─▶ upstream (or an answer of its own) ─▶ head changed ─▶ asked
//!                  │ refused                                                  answer ◀──────┘
//!                  └─▶ problem ─▶ told to the page that asks, or to the tunnel server
//! ```

use std::sync::Arc;

use http::request::Parts;
use http::{Method, Response};
use tunnel_proto::control::{RouteState, RouteSummary};
use tunnel_proto::problem::{Hop, Problem, Reason};

use super::leads::{LeadParts, OnDemand, Upstreams};
use super::own_answer::AnswerBody;
use super::summary;
use super::template::{RefusedSegment, Template};
use crate::config::{RouteAction, RouteConfig};
use crate::metrics::RouteMetrics;
use crate::upstream::{Asked, Upstream, UpstreamError};

/// A route that requests are sent by.
pub(crate) struct Route {
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
    Nobody(Response<AnswerBody>),
}

/// What a reload can take over of the routes before it.
pub(super) struct Earlier {
    upstreams: Vec<Arc<Upstreams>>,
    on_demand: Vec<Arc<OnDemand>>,
}

impl Earlier {
    /// All that these routes lead to.
    pub(super) fn of<'a>(routes: impl IntoIterator<Item = &'a Arc<Route>>) -> Self {
        let mut earlier = Self {
            upstreams: Vec::new(),
            on_demand: Vec::new(),
        };
        for route in routes {
            match &route.lead {
                Lead::Upstreams(upstreams) => earlier.upstreams.push(Arc::clone(upstreams)),
                Lead::Template(_, on_demand) => earlier.on_demand.push(Arc::clone(on_demand)),
                Lead::Own => {}
            }
        }
        earlier
    }

    /// What is made of the same; each is given to one route, since routes share no connections.
    fn take<T>(those: &mut Vec<Arc<T>>, is_same: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        let place = those.iter().position(|one| is_same(one))?;
        Some(those.swap_remove(place))
    }
}

impl Route {
    /// A route as the configuration says, with what is there already of its upstreams.
    ///
    /// # Errors
    /// When its upstreams cannot be as it says.
    pub(super) fn new(
        config: RouteConfig,
        earlier: &mut Earlier,
        parts: &LeadParts,
        metrics: Arc<RouteMetrics>,
    ) -> Result<Self, UpstreamError> {
        let lead = match &config.action {
            RouteAction::Upstreams(upstreams) => {
                let same = |one: &Upstreams| one.is_of(&config.action);
                Lead::Upstreams(match Earlier::take(&mut earlier.upstreams, same) {
                    Some(there) => there,
                    None => Arc::new(Upstreams::new(upstreams, parts)?),
                })
            }
            RouteAction::Template(template, options) => {
                let same = |one: &OnDemand| one.is_of(&config.action);
                let there = match Earlier::take(&mut earlier.on_demand, same) {
                    Some(there) => there,
                    None => {
                        let scheme = template.base().scheme();
                        Arc::new(OnDemand::new(scheme, options, parts)?)
                    }
                };
                Lead::Template(template.clone(), there)
            }
            RouteAction::Respond(_) | RouteAction::Deny(_) => Lead::Own,
        };
        let is_plain = config.values.is_empty()
            && config.cors.is_none()
            && config.rewrite.keeps_request()
            && config.rewrite.response.is_empty();
        Ok(Self {
            is_plain,
            lead,
            metrics,
            config,
        })
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.config.name
    }

    /// What the server is told of it.
    pub(super) fn summary(&self) -> RouteSummary {
        RouteSummary {
            name: self.name().to_owned(),
            matches: summary::conditions(&self.config),
            to: summary::leads_to(&self.config),
            state: match &self.lead {
                Lead::Upstreams(upstreams) => summary::state(&upstreams.states()),
                Lead::Template(..) => RouteState::Unknown,
                Lead::Own => RouteState::Own,
            },
        }
    }

    /// What is counted of it.
    pub(crate) fn metrics(&self) -> &RouteMetrics {
        &self.metrics
    }

    /// Answers a request that it takes. A problem that a page was told instead of the tunnel server is
    /// in `told`.
    ///
    /// # Errors
    /// When there is no answer.
    pub(crate) async fn answer(
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
        let page = (self.config.cors.as_ref()).and_then(|policy| policy.page(asked.head()));
        let (problem, page) = match (self.ask(asked, &method).await, page) {
            (Ok(response), Some(page)) if matches!(self.lead, Lead::Own) => {
                return Ok(page.permit(response));
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
            self.config.rewrite.apply(asked.head_mut())?;
        }
        let mut response = match whom {
            Whom::Upstreams(upstreams) => upstreams.ask(asked).await?.map(AnswerBody::Upstream),
            Whom::OnDemand(upstream) => upstream.ask(asked).await?.map(AnswerBody::Upstream),
            Whom::Nobody(response) => response,
        };
        self.config
            .rewrite
            .apply_to_answer(response.headers_mut())?;
        Ok(response)
    }

    fn whom(&self, head: &Parts, method: &Method) -> Result<Whom<'_>, Problem> {
        let path = head.uri.path().as_bytes();
        let refused = |segment: RefusedSegment| {
            let detail = format!("route `{}`: {segment}", self.config.name);
            Problem::new(Hop::Client, Reason::SegmentRefused, detail)
        };
        self.config.check_values(path).map_err(refused)?;
        match (&self.lead, &self.config.action) {
            (Lead::Upstreams(upstreams), _) => Ok(Whom::Upstreams(upstreams)),
            (Lead::Template(template, on_demand), _) => {
                let url = template.fill(path).map_err(refused)?;
                Ok(Whom::OnDemand(on_demand.get(url)))
            }
            (Lead::Own, RouteAction::Respond(answer)) => Ok(Whom::Nobody(answer.respond(method))),
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
}
