//! A table whose stripes have versions: values that a validated read returns were all present at
//! one moment, in every order that the memory model allows.

use std::sync::Arc;

use loom::sync::atomic::AtomicU64;
use loom::sync::atomic::Ordering::Relaxed;
use loom::thread;
use pagelith_io::seqlock::SeqLocks;

use super::every_order;

/// Two stripes of one word each. In the writer's `n`th section both become `n`: it does not look at
/// them before, since loom tries no other order of a write and another thread's look if the writer
/// looked itself in between.
struct Table {
    versions: SeqLocks,
    words: [AtomicU64; 2],
}

impl Table {
    fn new() -> Arc<Table> {
        Arc::new(Table {
            versions: SeqLocks::new(2),
            words: [AtomicU64::new(0), AtomicU64::new(0)],
        })
    }

    fn section(&self, n: u64, order: [usize; 2]) {
        for at in order {
            assert!(self.versions.begin(at));
            self.words[at].store(n, Relaxed);
        }
        order.into_iter().for_each(|at| self.versions.end(at));
    }

    /// Both words, if they had these values at one moment.
    fn read(&self, order: [usize; 2]) -> Option<[u64; 2]> {
        let mut found = [0; 2];
        let mut stamps = Vec::new();
        for at in order {
            stamps.push(self.versions.stamp(at)?);
            found[at] = self.words[at].load(Relaxed);
        }
        self.versions.validate(&stamps).then_some(found)
    }
}

fn read_while_written(sections: usize, order: [usize; 2]) {
    let table = Table::new();
    let writer = {
        let table = table.clone();
        thread::spawn(move || (1..=sections as u64).for_each(|n| table.section(n, [0, 1])))
    };
    if let Some([first, second]) = table.read(order) {
        assert_eq!(first, second, "half of a section was read");
    }
    writer.join().unwrap();
    let n = sections as u64;
    assert_eq!(table.read([0, 1]), Some([n, n]), "what has ended is not read");
}

#[test]
fn one_section_is_read_atomically() {
    every_order("versions_a_section_is_read_whole", None, || read_while_written(1, [0, 1]));
}

#[test]
fn one_section_is_read_atomically_in_reverse_order() {
    every_order("versions_the_other_way_round", None, || read_while_written(1, [1, 0]));
}

#[test]
fn two_sections_are_read_atomically() {
    every_order("versions_two_sections", Some(3), || read_while_written(2, [0, 1]));
}
