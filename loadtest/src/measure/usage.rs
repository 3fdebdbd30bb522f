//! What programs use: processor time and resident memory, by role, children included.
//!
//! Comes from `/proc`. A role is what a process is to the measurement (`load generator`, `tunnel
//! server`, `nginx`); it may have many processes, and each process's descendants count with it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs, io,
    path::Path,
    time::Duration,
};

use tokio::time::Instant;

use crate::report::{Usage, tables::GENERATOR};

/// Processes by what they are to the measurement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    processes: BTreeMap<String, Vec<u32>>,
}

impl Roles {
    /// This program alone.
    pub fn generator() -> Self {
        let mut roles = Self::default();
        roles.add(GENERATOR, std::process::id());
        roles
    }

    /// Adds a process.
    pub fn add(&mut self, role: impl Into<String>, pid: u32) {
        self.processes.entry(role.into()).or_default().push(pid);
    }

    /// Adds all processes of `other`.
    pub fn extend(&mut self, other: &Self) {
        for (role, pids) in &other.processes {
            let ours = self.processes.entry(role.clone()).or_default();
            ours.extend(pids);
            ours.sort_unstable();
            ours.dedup();
        }
    }

    /// The processes of each role, with all that descend from them.
    fn families(&self) -> BTreeMap<String, Vec<u32>> {
        let children = children();
        let families = self.processes.iter();
        let families = families.map(|(role, roots)| (role.clone(), family(roots, &children)));
        families.collect()
    }
}

/// Reads the usage of all roles between its start and its end.
#[derive(Debug)]
pub struct Meter {
    roles: Roles,
    /// Processor time of each process when it was first and last seen.
    seen: HashMap<u32, (Cpu, Cpu)>,
    used: BTreeMap<String, RoleUse>,
    /// The processes of each role, and when they were looked for.
    families: Option<(Instant, BTreeMap<String, Vec<u32>>)>,
}

#[derive(Debug, Default)]
struct RoleUse {
    /// All that ever had the role.
    pids: BTreeSet<u32>,
    /// How many there are now.
    processes: usize,
    peak_rss: u64,
    rss: u64,
}

/// How old a list of descendants of a process may be: making one reads all of /proc.
const BELIEVED: Duration = Duration::from_secs(1);

impl Meter {
    /// Reads the first values.
    pub fn start(roles: Roles) -> Self {
        let mut meter = Self {
            roles,
            seen: HashMap::new(),
            used: BTreeMap::new(),
            families: None,
        };
        meter.look(|cpu| cpu);
        meter
    }

    /// Reads values in between, for the highest memory and for processes that end before the meter does.
    pub fn sample(&mut self) {
        // A process that began since has used all that it used within the measured stretch.
        self.look(|_| Cpu::default());
    }

    fn look(&mut self, first: impl Fn(Cpu) -> Cpu) {
        let now = Instant::now();
        let (found, families) = match self.families.take() {
            Some((found, families)) if now - found < BELIEVED => (found, families),
            _ => (now, self.roles.families()),
        };
        for (role, pids) in &families {
            let used = self.used.entry(role.clone()).or_default();
            (used.processes, used.rss) = (0, 0);
            for &pid in pids {
                let Some(cpu) = Cpu::of(pid) else { continue };
                used.processes += 1;
                used.rss += resident(pid).unwrap_or(0);
                let seen = self.seen.entry(pid);
                seen.or_insert_with(|| (first(cpu), cpu)).1 = cpu;
            }
            used.peak_rss = used.peak_rss.max(used.rss);
            used.pids.extend(pids);
        }
        self.families = Some((found, families));
    }

    /// Reads the last values, and returns what was used since the start.
    pub fn finish(mut self) -> BTreeMap<String, Usage> {
        self.families = None;
        self.sample();
        let seen = self.seen;
        let usage = |used: RoleUse| {
            let seen = used.pids.iter().filter_map(|pid| seen.get(pid));
            let cpu: Duration = seen.map(|(first, last)| last.since(*first)).sum();
            Usage {
                processes: used.processes,
                cpu_seconds: cpu.as_secs_f64(),
                peak_rss: used.peak_rss,
                rss: used.rss,
            }
        };
        let used = self.used.into_iter();
        used.map(|(role, used)| (role, usage(used))).collect()
    }
}

/// Processor time of a process since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cpu {
    /// User and system time of all its threads, those that ended too; in steps of 10 ms.
    coarse: Duration,
    /// User and system time of the threads that live, to the nanosecond.
    fine: Duration,
}

impl Cpu {
    /// What the process has used so far; none when it is gone.
    pub fn of(pid: u32) -> Option<Self> {
        let (_, coarse) = stat(pid)?;
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
        let scheduled = tasks.flatten().filter_map(|task| scheduled(&task.path()));
        let fine = scheduled.map(|(ran, _)| ran).sum();
        Some(Self { coarse, fine })
    }

    /// What was used between `earlier` and this.
    pub fn since(self, earlier: Self) -> Duration {
        let coarse = self.coarse.saturating_sub(earlier.coarse);
        let fine = self.fine.saturating_sub(earlier.fine);
        // Threads that ended are missing from the fine count, and some kernels have none: then the
        // coarse one, whose steps are 10 ms for each of user and system time, knows better.
        let step = Duration::from_millis(40);
        if fine + step < coarse { coarse } else { fine }
    }
}

/// How long this thread has run, and how long it has waited for a processor though it could have run. Zero where
/// the kernel does not tell.
pub fn own_thread() -> (Duration, Duration) {
    scheduled(Path::new("/proc/thread-self")).unwrap_or_default()
}

/// How long the thread with this directory in `/proc` ran, and waited.
fn scheduled(directory: &Path) -> Option<(Duration, Duration)> {
    let text = fs::read_to_string(directory.join("schedstat")).ok()?;
    let mut fields = text.split_ascii_whitespace();
    let mut next = || fields.next()?.parse().ok().map(Duration::from_nanos);
    Some((next()?, next()?))
}

/// The parent of a process, and its user and system time in steps of the kernel's ticks.
fn stat(pid: u32) -> Option<(u32, Duration)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in brackets may contain anything, so fields are counted from its end.
    let fields: Vec<_> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let number = |field: usize| fields.get(field)?.parse::<u64>().ok();
    let ticks = (number(11)? + number(12)?) as f64;
    let each = rustix::param::clock_ticks_per_second().max(1) as f64;
    Some((
        u32::try_from(number(1)?).ok()?,
        Duration::from_secs_f64(ticks / each),
    ))
}

/// Resident memory of a process, bytes.
pub fn resident(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = text.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// Whether the process is there and its use can be read.
///
/// # Errors
/// Says why not.
pub fn check(pid: u32) -> io::Result<()> {
    fs::read_to_string(format!("/proc/{pid}/stat")).map(drop)
}

/// All processes, by the process that started them.
fn children() -> HashMap<u32, Vec<u32>> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    let Ok(entries) = fs::read_dir("/proc") else {
        return children;
    };
    let pids = entries.flatten();
    for pid in pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
        if let Some((parent, _)) = stat(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    children
}

/// The processes themselves and their descendants. This program's children have roles of their
/// own, so they do not count as its family.
fn family(roots: &[u32], children: &HashMap<u32, Vec<u32>>) -> Vec<u32> {
    let own = std::process::id();
    let mut found: Vec<u32> = Vec::new();
    let mut open = roots.to_vec();
    while let Some(pid) = open.pop() {
        if found.contains(&pid) {
            continue;
        }
        found.push(pid);
        if pid != own {
            open.extend(children.get(&pid).into_iter().flatten());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn counts_what_a_child_of_a_process_uses() {
        // The shell waits; its child burns.
        let script =
            "(i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo done; sleep 60) & wait";
        let mut shell = Command::new("sh")
            .args(["-c", script])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut roles = Roles::default();
        roles.add("burner", shell.id());
        let meter = Meter::start(roles);
        let mut line = String::new();
        let output = shell.stdout.take().unwrap();
        io::BufRead::read_line(&mut io::BufReader::new(output), &mut line).unwrap();
        let usage = meter.finish();
        let pids = family(&[shell.id()], &children());
        for pid in pids.iter().rev() {
            drop(Command::new("kill").arg(pid.to_string()).status());
        }
        drop(shell.wait());
        let burner = &usage["burner"];
        assert!(burner.processes >= 2, "{burner:?}");
        assert!(burner.cpu_seconds > 0.0 && burner.rss > 0, "{burner:?}");
    }
}
