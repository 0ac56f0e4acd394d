//! Arrays of equal structures in a frame.

use std::marker::PhantomData;

use bytemuck::{AnyBitPattern, NoUninit};

use crate::format::read;

/// A borrowed array of structures in a body.
#[derive(Debug, PartialEq, Eq)]
pub struct List<'a, T> {
    bytes: &'a [u8],
    of: PhantomData<T>,
}

impl<T> Clone for List<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for List<'_, T> {}

impl<'a, T: NoUninit> List<'a, T> {
    /// Borrow a slice.
    pub fn of(items: &'a [T]) -> List<'a, T> {
        List { bytes: bytemuck::cast_slice(items), of: PhantomData }
    }
}

impl<'a, T> List<'a, T> {
    /// The bytes as in the frame.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

impl<'a, T: AnyBitPattern> List<'a, T> {
    const SIZE: usize = std::mem::size_of::<T>();

    /// Split `count` structures off the front of `bytes`; `None` if `bytes` is too short.
    pub(crate) fn take(bytes: &mut &'a [u8], count: u32) -> Option<List<'a, T>> {
        let len = usize::try_from(count).ok()?.checked_mul(Self::SIZE)?;
        let (head, rest) = bytes.split_at_checked(len)?;
        *bytes = rest;
        Some(List { bytes: head, of: PhantomData })
    }

    /// Number of structures.
    pub fn len(&self) -> usize {
        self.bytes.len() / Self::SIZE
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Structure `i`, from 0.
    pub fn get(&self, i: usize) -> Option<T> {
        read(self.bytes.get(i.checked_mul(Self::SIZE)?..)?)
    }

    /// The structures `first..last`; empty if the range is not within the list.
    pub fn slice(&self, first: usize, last: usize) -> List<'a, T> {
        let range = first.saturating_mul(Self::SIZE)..last.saturating_mul(Self::SIZE);
        List { bytes: self.bytes.get(range).unwrap_or_default(), of: PhantomData }
    }

    /// All structures, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = T> + Clone + use<'a, T> {
        self.bytes.chunks_exact(Self::SIZE).map(bytemuck::pod_read_unaligned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_take_splits_front_or_fails() {
        let bytes = [1u8, 0, 2, 0, 3, 0, 9];
        let mut rest = &bytes[..];
        let list: List<'_, u16> = List::take(&mut rest, 3).expect("the bytes hold three");
        assert_eq!((list.len(), rest), (3, &[9u8][..]));
        assert_eq!(list.iter().collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!((list.get(2), list.get(3), list.get(usize::MAX)), (Some(3), None, None));
        assert_eq!(list.slice(1, 3).iter().collect::<Vec<_>>(), [2, 3]);
        assert!(list.slice(1, 4).is_empty() && list.slice(3, 2).is_empty());
        assert!(List::<u16>::take(&mut rest, 1).is_none());
        assert!(List::<u16>::take(&mut rest, u32::MAX).is_none());
    }
}
