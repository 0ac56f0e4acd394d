//! The scheduler's table of tasks.

use std::collections::BTreeSet;

use pagelith_io::clock::Mono;
use pagelith_io::runtime::{Step, Task};
use pagelith_io::signal::Signal;

use crate::entropy::SplitMix64;

struct Slot {
    id: u64,
    process: u64,
    name: String,
    wake: Signal,
    /// `None` while the task is being stepped.
    task: Option<Box<dyn Task>>,
    /// The value of `wake` before the last step began, so that a raise during the step is not lost.
    seen: u64,
    /// `None`: can run.
    idle_until: Option<Mono>,
}

impl Slot {
    fn can_run(&self, now: Mono) -> bool {
        let due =
            self.idle_until.is_none_or(|until| until <= now) || self.wake.value() != self.seen;
        self.task.is_some() && due
    }
}

/// Tasks of all processes, oldest first.
pub(super) struct Sched {
    slots: Vec<Slot>,
    alive: BTreeSet<u64>,
    next_id: u64,
    rng: SplitMix64,
}

impl Sched {
    pub(super) fn new(seed: u64) -> Sched {
        Sched { slots: Vec::new(), alive: BTreeSet::new(), next_id: 0, rng: SplitMix64::new(seed) }
    }

    fn number(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    pub(super) fn new_process(&mut self) -> u64 {
        let process = self.number();
        self.alive.insert(process);
        process
    }

    pub(super) fn is_alive(&self, process: u64) -> bool {
        self.alive.contains(&process)
    }

    /// Adds a task; a dead process gets it back.
    pub(super) fn add(
        &mut self,
        process: u64,
        name: &str,
        task: Box<dyn Task>,
        wake: Signal,
    ) -> Result<u64, Box<dyn Task>> {
        if !self.is_alive(process) {
            return Err(task);
        }
        let id = self.number();
        let name = name.to_string();
        let slot = Slot {
            id,
            process,
            name,
            seen: wake.value(),
            wake,
            task: Some(task),
            idle_until: None,
        };
        self.slots.push(slot);
        Ok(id)
    }

    /// Takes one of the runnable tasks, to be stepped and put back.
    pub(super) fn pick(&mut self, now: Mono) -> Option<(u64, Box<dyn Task>)> {
        let ready: Vec<usize> =
            self.slots.iter().enumerate().filter(|(_, s)| s.can_run(now)).map(|(i, _)| i).collect();
        let chosen = *ready.get(self.rng.below(ready.len() as u64) as usize)?;
        let slot = self.slots.get_mut(chosen)?;
        slot.seen = slot.wake.value();
        Some((slot.id, slot.task.take()?))
    }

    /// Puts a stepped task back. If it is done or was killed meanwhile, the caller gets it to drop.
    pub(super) fn put_back(
        &mut self,
        id: u64,
        task: Box<dyn Task>,
        step: Step,
        now: Mono,
    ) -> Option<Box<dyn Task>> {
        let Some(slot) = self.slots.iter_mut().find(|s| s.id == id) else { return Some(task) };
        slot.idle_until = match step {
            Step::Again => None,
            Step::Idle(d) => Some(now.after(d)),
            Step::Done => {
                self.slots.retain(|s| s.id != id);
                return Some(task);
            }
        };
        slot.task = Some(task);
        None
    }

    /// When the first idle task becomes runnable by timeout.
    pub(super) fn next_wake(&self) -> Option<Mono> {
        self.slots.iter().filter(|s| s.task.is_some()).filter_map(|s| s.idle_until).min()
    }

    pub(super) fn has(&self, id: u64) -> bool {
        self.slots.iter().any(|s| s.id == id)
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.slots.iter().map(|s| s.name.clone()).collect()
    }

    /// Ends processes; the caller drops their tasks.
    pub(super) fn kill(&mut self, doomed: impl Fn(u64) -> bool) -> Vec<Box<dyn Task>> {
        self.alive.retain(|process| !doomed(*process));
        let mut tasks = Vec::new();
        for slot in self.slots.iter_mut().filter(|s| doomed(s.process)) {
            tasks.extend(slot.task.take());
        }
        self.slots.retain(|s| !doomed(s.process));
        tasks
    }
}
