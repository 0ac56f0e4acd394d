//! What objects were put together, and what they are attached to, as a store says it of what it sends to another.
//!
//! A record names the base of what is attached by a hash that only its own store can make. So the store that sends it looks for a key of
//! that name: where it was put as attached, among all that is asked for with it, and in memory. What lies on SSD alone, and is asked for by
//! itself, is not said to be attached to anything.

use pagelith_layouts::ids::{Generation, NamespaceId, PrefixHash, Sequence};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::outcome::Base;
use pagelith_tiers::policy::FrameId;
use rustc_hash::FxHashMap;

use crate::api::group_info::{AttachedTo, Together};
use crate::api::outcome::Proof;
use crate::memory::frames::FrameData;
use crate::state::core::Core;
use crate::state::shared::Shared;

/// What the objects of a frame were put with.
pub(crate) fn of_frame(data: &FrameData) -> Together {
    let FrameData { base_group, sequence, base, .. } = data;
    let to = || AttachedTo { base_group: *base_group, sequence: *sequence, base: base.clone() };
    Together { members: data.members.len() as u32, attached: data.is_attached().then(to) }
}

/// The checksums and the group of a frame's member.
pub(crate) fn proof_of_frame(data: &FrameData, member: usize) -> Proof {
    Proof { checksums: data.members[member].checksums.clone(), with: of_frame(data) }
}

/// What each of these objects is attached to, as far as that is known; `None` of those that are not attached.
pub(crate) fn bases(shared: &Shared, asked: &[(ObjectKey, Option<&AttachedTo>)]) -> Vec<Option<Base>> {
    let mut pages: FxHashMap<(NamespaceId, PrefixHash), Vec<ObjectKey>> = FxHashMap::default();
    if asked.iter().any(|(_, to)| to.is_some_and(|to| to.base.is_none())) {
        asked.iter().for_each(|(key, _)| pages.entry((key.namespace(), key.hash())).or_default().push(*key));
    }
    let mut numbers: FxHashMap<(u64, Sequence), Base> = FxHashMap::default();
    let mut base = |(key, to): &(ObjectKey, Option<&AttachedTo>)| {
        let to = (*to)?;
        if let Some(known) = numbers.get(&(to.base_group, to.sequence)) {
            return Some(*known);
        }
        let with = pages.get(&(key.namespace(), key.hash())).map_or(&[][..], Vec::as_slice);
        let found = to.base.as_deref().copied().or_else(|| named(shared, key, to.base_group, with))?;
        let base = Base { number: numbers.len() as u32, key: found };
        numbers.insert((to.base_group, to.sequence), base);
        Some(base)
    };
    asked.iter().map(&mut base).collect()
}

/// An object of this name on the page of `key`: one of `with`, or one in memory.
fn named(shared: &Shared, key: &ObjectKey, name: u64, with: &[ObjectKey]) -> Option<ObjectKey> {
    let core = shared.lock();
    let generation = core.generation(key.namespace());
    let is_it = |other: &ObjectKey| other.same_page(key) && shared.group_name(other, generation) == name;
    with.iter().copied().find(is_it).or_else(|| in_memory(&core, name, generation, is_it))
}

fn in_memory(
    core: &Core,
    name: u64,
    generation: Generation,
    is_it: impl Fn(&ObjectKey) -> bool,
) -> Option<ObjectKey> {
    let frames = core.index.find_named(name).filter_map(|entry| entry.frame);
    let datas = frames.filter_map(|frame| core.frames.get(FrameId(frame))).map(|frame| &frame.data);
    let mut keys = datas.filter(|data| data.generation == generation).flat_map(|data| &data.members);
    keys.find(|member| is_it(&member.key)).map(|member| member.key)
}
