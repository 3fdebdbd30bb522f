//! Which events are logged, as of now.
//!
//! In come levels by target, at any time; out comes the answer for each place in the code, which
//! tracing keeps until the levels change. So nothing is asked per event, and no lock is taken: `reload` of
//! tracing-subscriber takes one each time that a span is entered or left, on every thread.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tracing::{Metadata, Subscriber, subscriber::Interest};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Context, Layer};

/// A filter that can be replaced. Its clones are one.
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

    /// Counts what comes through.
    #[derive(Clone, Default)]
    struct Heard(Arc<AtomicUsize>);

    impl<S: Subscriber> Layer<S> for Heard {
        fn on_event(&self, _event: &tracing::Event<'_>, _context: Context<'_, S>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_is_logged_changes_at_once_in_both_directions() {
        let heard = Heard::default();
        let at = |level| Targets::new().with_default(level);
        let filter = LiveFilter::new(at(LevelFilter::INFO));
        let _default = tracing_subscriber::registry()
            .with(filter.clone())
            .with(heard.clone())
            .set_default();
        // One place in the code, so that a stale answer about it would show.
        let say = || {
            tracing::debug!("said");
            heard.0.load(Ordering::Relaxed)
        };
        assert_eq!(say(), 0);
        filter.set(at(LevelFilter::DEBUG));
        assert_eq!(say(), 1);
        filter.set(at(LevelFilter::WARN));
        assert_eq!(say(), 1);
    }
}
