//! The class of a page: the facts about it when it is requested. Pages of one class are taken
//! to be requested again alike.

/// Number of classes.
pub(super) const CLASSES: usize = 1 << CLASS_BITS;
/// Bits of a class's number.
pub(super) const CLASS_BITS: u32 = 7;
/// Values that `touches`, the gap, and the chat turn are counted up to, beginning with 0.
pub(super) const LEVEL_MAX: u32 = 3;

/// A class: touches 2 bits | detail 2 | near the end 1 | turn 2. The detail of a page that was
/// touched once is its distance from the end of the batch; later it is the gap between its last two
/// touches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PageClass(u8);

impl PageClass {
    /// From its number; higher bits are ignored.
    pub(super) fn from_number(number: u32) -> PageClass {
        PageClass((number as usize % CLASSES) as u8)
    }

    /// A page that is touched for the first time, `from_end` pages before the end of its batch, in
    /// a turn of its chain.
    pub(super) fn first(from_end: usize, chat_turn: u32) -> PageClass {
        PageClass::new(0, (from_end as u32).min(LEVEL_MAX), from_end, chat_turn)
    }

    /// The page is touched again, `gap` after the last time. The turn stays.
    pub(super) fn again(self, gap: u32, from_end: usize) -> PageClass {
        PageClass::new(
            (self.touches() + 1).min(LEVEL_MAX),
            gap_level(gap),
            from_end,
            self.chat_turn(),
        )
    }

    fn new(touches: u32, detail: u32, from_end: usize, chat_turn: u32) -> PageClass {
        let near_end = u32::from(from_end < 2);
        PageClass((touches << 5 | detail << 3 | near_end << 2 | chat_turn.min(LEVEL_MAX)) as u8)
    }

    /// Number of earlier touches, at most 3.
    pub(super) fn touches(self) -> u32 {
        u32::from(self.0) >> 5
    }

    /// The turn of its chain in which it was first touched, at most 3.
    pub(super) fn chat_turn(self) -> u32 {
        u32::from(self.0) & LEVEL_MAX
    }

    /// Its number, below [`CLASSES`].
    pub(super) fn number(self) -> usize {
        usize::from(self.0)
    }
}

/// Level of a gap in steps of 1/512 of the SSD: below 1/32 of it, 1/8, 1/2, or more.
fn gap_level(gap: u32) -> u32 {
    match gap {
        0..16 => 0,
        16..64 => 1,
        64..256 => 2,
        _ => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn class_counts_touches_and_keeps_its_turn() {
        let first = PageClass::first(5, 2);
        assert_eq!((first.touches(), first.chat_turn()), (0, 2));
        let again = first.again(20, 0).again(20, 0);
        assert_eq!((again.touches(), again.chat_turn()), (2, 2));
        let often = (0..9).fold(first, |class, _| class.again(1, 5));
        assert_eq!((often.touches(), often.chat_turn()), (3, 2));
        assert_eq!(PageClass::first(0, 9).chat_turn(), LEVEL_MAX);
    }

    #[test]
    fn classes_differ_by_what_they_are_made_of_and_survive_their_number() {
        let of = |from_end, chat_turn| PageClass::first(from_end, chat_turn);
        let classes = [
            of(0, 0),
            of(1, 0),
            of(2, 0),
            of(3, 0),
            of(0, 1),
            of(0, 0).again(1, 0),
            of(0, 0).again(30, 0),
            of(0, 0).again(30, 5),
        ];
        for (i, class) in classes.iter().enumerate() {
            assert!(classes[..i].iter().all(|other| other != class), "{class:?}");
            assert_eq!(PageClass::from_number(class.number() as u32), *class);
        }
        assert_eq!(of(3, 0), of(30, 0));
    }
}
