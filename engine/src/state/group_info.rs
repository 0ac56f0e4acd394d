//! Group metadata of objects that are sent to another store: their members and their base.
//!
//! A record names the base group of attached objects by a hash that only its own store can compute.
//! The sending store therefore looks for a key with this name: the key given with the put, the
//! other keys of the request, and the frames in memory. Objects that are on SSD only, and whose
//! base is not in the same request, are sent without a base.

use pagelith_layouts::ids::{Generation, NamespaceId, PrefixHash, Sequence};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::outcome::BaseRef;
use pagelith_tiers::policy::FrameId;
use rustc_hash::FxHashMap;

use crate::api::group_info::{BaseGroupInfo, GroupInfo};
use crate::api::outcome::ObjectMeta;
use crate::memory::frames::FrameData;
use crate::state::core::Core;
use crate::state::shared::Shared;

/// The group of a frame's objects.
pub(crate) fn of_frame_data(data: &FrameData) -> GroupInfo {
    let FrameData { base_name, sequence, base, .. } = data;
    let to = || BaseGroupInfo { base_name: *base_name, sequence: *sequence, base: base.clone() };
    GroupInfo { members: data.members.len() as u32, attached: data.is_attached().then(to) }
}

/// The checksums and the group of a frame member.
pub(crate) fn object_meta(data: &FrameData, member: usize) -> ObjectMeta {
    ObjectMeta { checksums: data.members[member].checksums.clone(), group: of_frame_data(data) }
}

/// The base of each requested object; `None` if it is not attached, or if no key of the base is
/// found.
pub(crate) fn bases(
    shared: &Shared,
    requested: &[(ObjectKey, Option<&BaseGroupInfo>)],
) -> Vec<Option<BaseRef>> {
    let mut pages: FxHashMap<(NamespaceId, PrefixHash), Vec<ObjectKey>> = FxHashMap::default();
    if requested.iter().any(|(_, to)| to.is_some_and(|to| to.base.is_none())) {
        requested.iter().for_each(|(key, _)| {
            pages.entry((key.namespace(), key.hash())).or_default().push(*key)
        });
    }
    // Also the names of bases that were not found: a search takes the core lock, and hashes all
    // keys of the page.
    let mut known: FxHashMap<(u64, Sequence), Option<BaseRef>> = FxHashMap::default();
    let mut count = 0;
    let mut base = |(key, to): &(ObjectKey, Option<&BaseGroupInfo>)| {
        let to = (*to)?;
        *known.entry((to.base_name, to.sequence)).or_insert_with(|| {
            let page = (key.namespace(), key.hash());
            let candidates = pages.get(&page).map_or(&[][..], Vec::as_slice);
            let found = to.base.as_deref().copied();
            let key = found.or_else(|| find_base(shared, key, to.base_name, candidates))?;
            let number = count;
            count += 1;
            Some(BaseRef { number, key })
        })
    };
    requested.iter().map(&mut base).collect()
}

/// A key of the base group `name` on the page of `key`: one of `candidates`, or one in memory.
fn find_base(
    shared: &Shared,
    key: &ObjectKey,
    name: u64,
    candidates: &[ObjectKey],
) -> Option<ObjectKey> {
    let core = shared.lock();
    let generation = core.generation(key.namespace());
    let is_it =
        |other: &ObjectKey| other.same_page(key) && shared.group_name(other, generation) == name;
    candidates
        .iter()
        .copied()
        .find(is_it)
        .or_else(|| find_in_memory(&core, name, generation, is_it))
}

fn find_in_memory(
    core: &Core,
    name: u64,
    generation: Generation,
    is_it: impl Fn(&ObjectKey) -> bool,
) -> Option<ObjectKey> {
    let frames = core.index.find_named(name).filter_map(|entry| entry.frame);
    let datas =
        frames.filter_map(|frame| core.dram.frames.get(FrameId(frame))).map(|frame| &frame.data);
    let mut keys =
        datas.filter(|data| data.generation == generation).flat_map(|data| &data.members);
    keys.find(|member| is_it(&member.key)).map(|member| member.key)
}
