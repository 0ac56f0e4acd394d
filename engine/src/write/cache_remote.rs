//! What a peer sent is kept here too, page by page, as if it had been put: the next get finds it in DRAM, and later ones on SSD. No peer
//! is offered it.
//!
//! Only what came whole with all that was put with it is kept, so that a page is of one computation; only if nothing of it is here, nor
//! may be; and only if nothing was removed meanwhile ([`crate::rpc::removal_fence`]). What is attached is kept beside its base, if that is here or
//! was kept before it, and is not seen without it here either.

use std::collections::BTreeMap;

use pagelith_io::fused::{Copier, Stores};
use pagelith_layouts::ids::{NamespaceId, PrefixHash};
use pagelith_layouts::key::ObjectKey;
use pagelith_mutants::{self as mutant, Mutant};
use pagelith_tiers::policy::Recency;

use crate::api::outcome::GetDone;
use crate::config::Promote;
use crate::memory::frames::FrameRef;
use crate::rpc::remote_get::{Fetched, RemoteGet};
use crate::rpc::removal_fence::Quiet;
use crate::state::core::Core;
use crate::state::shared::Shared;
use crate::write::put;
use crate::write::put::admit::{Admission, admit};
use crate::write::put::copied::{CopySource, MemberSource, prepare};
use crate::write::put::publish::publish;
use crate::write::put::{Came, Kind, Size, Stored};

/// Keep what a batch brought. A page that there is no room for is not kept: a promotion is never worth waiting.
pub(crate) fn keep(shared: &Shared, batch: &mut RemoteGet) {
    let fetched = batch.take_fetched();
    let asked = shared.config.promote() != Promote::Never && shared.config.dram_bytes() > 0;
    let Some(since) = batch.since().filter(|_| asked) else { return };
    let mut pages: BTreeMap<(NamespaceId, PrefixHash, usize), BTreeMap<ObjectKey, Fetched>> = BTreeMap::new();
    let mut attached: BTreeMap<(u64, u32), BTreeMap<ObjectKey, Fetched>> = BTreeMap::new();
    for one in fetched.into_iter().filter(|one| one.members > 0) {
        let page = match &one.attached {
            Some((question, base)) => attached.entry((*question, base.number)).or_default(),
            None => {
                // Objects by themselves are pages of their own.
                let number = if one.members == 1 { one.at + 1 } else { 0 };
                pages.entry((one.key.namespace(), one.key.hash(), number)).or_default()
            }
        };
        page.insert(one.key, one);
    }
    let mut frames = Vec::new();
    // What is attached last: its base may have come with it.
    for page in pages.into_values().chain(attached.into_values()) {
        let page: Vec<Fetched> = page.into_values().collect();
        let kind = match &page[0].attached {
            Some((_, base)) => Kind::Attached(&base.key),
            None if page.len() == 1 => Kind::Single,
            None => Kind::Base,
        };
        if page.iter().all(|one| one.members == page.len()) {
            let at = batch.manner().at;
            let at = Recency { depth: at.depth.saturating_add(page[0].at as u32), ..at };
            frames.extend(keep_page(shared, batch.done(), kind, &page, since, at));
        }
    }
    if !frames.is_empty() {
        put::enqueue(&mut shared.lock(), &mut frames);
        shared.work.raise();
    }
}

/// Keep the objects of a page; the frames that are to be queued.
fn keep_page(
    shared: &Shared,
    done: &[GetDone],
    kind: Kind<'_>,
    page: &[Fetched],
    since: Quiet,
    at: Recency,
) -> Vec<FrameRef> {
    let size =
        |one: &Fetched| Size { key: one.key, length: Some(done[one.at].destination.len()), in_arena: false };
    let sizes: Vec<Size> = page.iter().map(size).collect();
    // What nobody could put here: it is too large, or attached to something that is not of its page.
    if put::check(shared, kind, &sizes).is_err() {
        return Vec::new();
    }
    // Nothing gives way in the index for it: what did would be gone from SSD too. What is attached takes a link besides.
    let entries = page.len() as u64 * if matches!(kind, Kind::Attached(_)) { 2 } else { 1 };
    let may = |core: &Core| {
        let room = core.index.len() + entries <= core.index.capacity();
        room && (shared.removals.none_since(since) || mutant::on(Mutant::KeptBehindRemoval))
    };
    let mut core = shared.lock();
    if !may(&core) {
        return Vec::new();
    }
    // What may be here already, in whatever form, stays as it is.
    let mut admitted = match admit(shared, &mut core, kind, &sizes, None, &[]) {
        Admission::Admitted(admitted) => admitted,
        _ => return Vec::new(),
    };
    if admitted.met_some() {
        admitted.give_back(&mut core);
        return Vec::new();
    }
    admitted.came = Came::Fetched;
    drop(core);
    let bytes = |of: usize| CopySource::Caller(&done[page[of].at].destination.0);
    let incoming = page.iter().map(|one| MemberSource::ToCopy(one.key));
    let mut copied = prepare(kind.of_frame(), &page[0].key, incoming, admitted, at);
    if let Some(mut filling) = copied.begin_copy() {
        filling.fill(&shared.memory, &mut Copier::new(Stores::PastCache), bytes);
    }
    // The caller has not got its memory back yet, so this is what was verified; it is compared all the same, since it will be served
    // as if it were the original.
    let sums = page.iter().map(|one| &one.sums);
    let is_it = copied.has_checksums(sums);
    let mut core = shared.lock();
    if !is_it || !may(&core) {
        copied.give_back(&mut core);
        return Vec::new();
    }
    match publish(shared, &mut core, kind, copied, at) {
        Stored::Done(_, frames) => frames,
        Stored::Back(_, members) => {
            members.into_iter().for_each(|m| core.space.free(m.extent));
            Vec::new()
        }
    }
}
