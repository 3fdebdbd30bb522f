//! Links between nodes: one in each direction, on which reports are sent.

use std::time::Duration;

use tunnel_directory::shared::{
    PendingReport, REPORT_INTERVAL, Report, ReportingLink, SentReports,
};

use super::{
    super::{Event, World, names::LinkId},
    Link, Process,
};

/// The time after which a link that carries nothing is given up.
const LINK_SILENCE: Duration = Duration::from_millis(700);

/// Most reports at once.
const REPORTS_AT_ONCE: usize = 16;

impl World {
    fn is_link_possible(&self, from: usize, to: usize) -> bool {
        let knows = |process: &Process| process.run_of(&self.nodes[to].name).is_some();
        self.nodes[from].process.as_ref().is_some_and(knows)
            && self.nodes[to].process.is_some()
            && !self.is_silent(from, to)
    }

    /// Whether nothing comes back from a node.
    pub(crate) fn is_silent(&self, from: usize, to: usize) -> bool {
        self.cut_nodes.contains(&from)
            || self.cut_nodes.contains(&to)
            || self.cut_links.contains(&(from, to))
            || self.cut_links.contains(&(to, from))
            || self.nodes[from].held.is_some()
            || self.nodes[to].held.is_some()
    }

    pub(crate) fn on_link_tick(&mut self, from: usize, to: usize) {
        self.after(REPORT_INTERVAL, Event::LinkTick(from, to));
        self.keep_link(from, to);
        let at = self.address(from);
        let open = self.nodes[from].links.len();
        if self.nodes[from].held.is_none() {
            self.input(at, |directory, now| directory.on_links(open, now));
        }
    }

    fn keep_link(&mut self, from: usize, to: usize) {
        let (is_silent, now) = (self.is_silent(from, to), self.now);
        let carried = self.nodes[from].links.get(&to).map(|link| link.carried);
        match carried {
            Some(carried) if is_silent && now > carried + LINK_SILENCE => {
                self.nodes[from].links.remove(&to);
                self.end_receiving(to, |link| link.from == from);
            }
            Some(_) if is_silent => {}
            Some(_) => self.send_reports(from, to),
            None if self.is_link_possible(from, to) => {
                let id = LinkId {
                    from,
                    to,
                    number: self.next_id(),
                };
                let link = Link {
                    id,
                    sent: SentReports::default(),
                    carried: now,
                };
                let name = self.nodes[from].name.clone();
                self.nodes[from].links.insert(to, link);
                if let Some(process) = self.nodes[to].process.as_mut() {
                    process.receiving.insert(id, ReportingLink::new(name));
                }
                self.send_reports(from, to);
            }
            None => {}
        }
    }

    fn send_reports(&mut self, from: usize, to: usize) {
        let (now, name) = (self.now, self.nodes[to].name.clone());
        let node = &mut self.nodes[from];
        let (Some(process), Some(link)) = (node.process.as_ref(), node.links.get_mut(&to)) else {
            return;
        };
        link.carried = now;
        let Some(run) = process.run_of(&name) else {
            return;
        };
        let mut texts = Vec::new();
        for number in 0..REPORTS_AT_ONCE {
            let report: Option<PendingReport> =
                process.directory.next_report(&run, &link.sent, number, now);
            let Some(report) = report else { break };
            texts.push(report.text.clone());
            link.sent.on_sent(report);
        }
        let id = link.id;
        for text in texts {
            // In order: reports on one link do not overtake each other.
            self.after(Duration::from_millis(1), Event::ReportArrives(id, text));
        }
    }

    pub(crate) fn on_report(&mut self, id: LinkId, text: &str) {
        let at = self.address(id.to);
        let Some(mut link) = self
            .process(at)
            .and_then(|process| process.receiving.remove(&id))
        else {
            return;
        };
        if let Some(report) = Report::parse(text) {
            self.input(at, |directory, now| {
                directory.on_report(&mut link, report, now)
            });
        }
        if let Some(process) = self.process(at) {
            process.receiving.insert(id, link);
        }
    }

    pub(super) fn end_receiving(&mut self, node: usize, is_over: impl Fn(&LinkId) -> bool) {
        let at = self.address(node);
        let Some(process) = self.process(at) else {
            return;
        };
        let over: Vec<LinkId> = process
            .receiving
            .keys()
            .filter(|link| is_over(link))
            .copied()
            .collect();
        for id in over {
            self.after(Duration::ZERO, Event::LinkDown(id));
        }
    }

    pub(crate) fn on_link_down(&mut self, id: LinkId) {
        let at = self.address(id.to);
        let link = self
            .process(at)
            .and_then(|process| process.receiving.remove(&id));
        if let Some(link) = link {
            self.input(at, |directory, now| directory.on_link_down(&link, now));
        }
    }
}
