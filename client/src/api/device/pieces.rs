//! Memory of devices in gets and puts.

use std::ops::Range;

use pagelith_io::buffer::Part;
use pagelith_io::device::DeviceRange;
use pagelith_layouts::key::ObjectKey;

/// An object to be got into memory of a device.
#[derive(Clone, Debug)]
pub struct DeviceGet<'a> {
    /// Its key.
    pub key: ObjectKey,
    /// The byte range; `None` for all.
    pub range: Option<Range<u64>>,
    /// The destination, in pieces; their sum is the length of the object, or of the range. Nothing
    /// else uses it until the device is done.
    pub pieces: &'a [DeviceRange],
}

/// An object to be put out of memory of a device.
#[derive(Clone, Debug)]
pub struct DevicePut<'a> {
    /// Its key.
    pub key: ObjectKey,
    /// Its bytes, in pieces. Nothing writes them until the device is done.
    pub pieces: &'a [DeviceRange],
}

/// Objects of one page, put together out of memory of a device, as
/// [`PutGroup`](crate::api::request::PutGroup).
#[derive(Clone, Copy, Debug)]
pub struct DeviceGroup<'a> {
    /// The objects.
    pub objects: &'a [DevicePut<'a>],
    /// An object of the base group to which they are attached.
    pub base: Option<ObjectKey>,
}

impl<'a> DeviceGroup<'a> {
    /// A base group, or a standalone object.
    pub fn new(objects: &'a [DevicePut<'a>]) -> DeviceGroup<'a> {
        DeviceGroup { objects, base: None }
    }
}

/// Sum of the ranges' lengths.
pub fn total(ranges: &[DeviceRange]) -> u64 {
    ranges.iter().fold(0, |sum: u64, range| sum.saturating_add(range.bytes() as u64))
}

/// `part` in pieces of the ranges' lengths, whose sum is its own.
pub fn split(part: Part, ranges: &[DeviceRange]) -> impl Iterator<Item = (Part, &DeviceRange)> {
    let mut rest = Some(part);
    ranges.iter().filter_map(move |range| {
        let (piece, after) = rest.take()?.split(range.bytes());
        rest = Some(after);
        Some((piece, range))
    })
}
