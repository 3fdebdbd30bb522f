//! A log filter that can be replaced at run time.
//!
//! In: levels by target, at any time. Out: the decision for each callsite, which tracing caches until the
//! levels change. So nothing is evaluated per event, and no lock is taken; `reload` of tracing-subscriber
//! takes one whenever a span is entered or left, on any thread.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tracing::{Metadata, Subscriber, subscriber::Interest};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Context, Layer};

/// A replaceable filter. Clones share their levels.
#[derive(Debug, Clone)]
pub(super) struct LiveFilter {
    targets: Arc<ArcSwap<Targets>>,
}

impl LiveFilter {
    pub(super) fn new(targets: Targets) -> Self {
        Self {
            targets: Arc::new(ArcSwap::from_pointee(targets)),
        }
    }

    pub(super) fn set(&self, targets: Targets) {
        self.targets.store(Arc::new(targets));
        tracing_core::callsite::rebuild_interest_cache();
    }
}

impl<S: Subscriber> Layer<S> for LiveFilter {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        Layer::<S>::register_callsite(&**self.targets.load(), metadata)
    }

    fn enabled(&self, metadata: &Metadata<'_>, context: Context<'_, S>) -> bool {
        Layer::<S>::enabled(&**self.targets.load(), metadata, context)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Layer::<S>::max_level_hint(&**self.targets.load())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tracing_subscriber::prelude::*;

    use super::*;

    /// Counts events.
    #[derive(Clone, Default)]
    struct EventCounter(Arc<AtomicUsize>);

    impl<S: Subscriber> Layer<S> for EventCounter {
        fn on_event(&self, _event: &tracing::Event<'_>, _context: Context<'_, S>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn new_levels_apply_at_once_in_both_directions() {
        let counter = EventCounter::default();
        let at = |level| Targets::new().with_default(level);
        let filter = LiveFilter::new(at(LevelFilter::INFO));
        let _default = tracing_subscriber::registry()
            .with(filter.clone())
            .with(counter.clone())
            .set_default();
        // A single callsite, so that a stale cached decision would be noticed.
        let log = || {
            tracing::debug!("said");
            counter.0.load(Ordering::Relaxed)
        };
        assert_eq!(log(), 0);
        filter.set(at(LevelFilter::DEBUG));
        assert_eq!(log(), 1);
        filter.set(at(LevelFilter::WARN));
        assert_eq!(log(), 1);
    }
}
