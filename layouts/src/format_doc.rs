//! The structures of the format and of the wire protocol, in the order of the pages
//! `docs/format.md` and `docs/protocol.md`, and the rendering of their fields.

use std::fmt::Write;

use crate::format::{Field, Structure};
use crate::{checkpoint, footer, key, learned, manifest, record, segment, shard, wire};

/// Every structure of the format, in the order of `docs/format.md`.
const STRUCTURES: &[Structure] = &[
    key::ObjectKey::STRUCTURE,
    shard::RawShard::STRUCTURE,
    segment::SegmentHead::STRUCTURE,
    record::RecordHead::STRUCTURE,
    record::Member::STRUCTURE,
    footer::FooterEntry::STRUCTURE,
    footer::FooterTail::STRUCTURE,
    manifest::BlockHead::STRUCTURE,
    manifest::Superblock::STRUCTURE,
    manifest::SegmentFact::STRUCTURE,
    manifest::NamespaceFact::STRUCTURE,
    checkpoint::CheckpointHead::STRUCTURE,
    checkpoint::ChunkHead::STRUCTURE,
    checkpoint::SegmentMark::STRUCTURE,
    checkpoint::CheckpointEntry::STRUCTURE,
    learned::LearnedHead::STRUCTURE,
    learned::BandCounts::STRUCTURE,
];

/// Every structure of the protocol, in the order of `docs/protocol.md`.
const WIRE_STRUCTURES: &[Structure] = &[
    wire::FrameHead::STRUCTURE,
    wire::greeting::Greeting::STRUCTURE,
    wire::greeting::HostNameHead::STRUCTURE,
    wire::greeting::RefusalHead::STRUCTURE,
    wire::auth::ChallengeBody::STRUCTURE,
    wire::auth::ProofBody::STRUCTURE,
    wire::request::RequestHead::STRUCTURE,
    wire::request::GetItem::STRUCTURE,
    wire::put::PutItem::STRUCTURE,
    wire::pull::PullItem::STRUCTURE,
    wire::shm_ref::ShownHead::STRUCTURE,
    wire::shm_ref::ShownPiece::STRUCTURE,
    wire::shm_ref::TakenItem::STRUCTURE,
    wire::rails::RailsHead::STRUCTURE,
    wire::rails::RailItem::STRUCTURE,
    wire::rdma_regions::RegionsHead::STRUCTURE,
    wire::rdma_regions::RegionItem::STRUCTURE,
    wire::placement::TargetItem::STRUCTURE,
    wire::placement::PlacedBody::STRUCTURE,
    wire::placement::NoticedItem::STRUCTURE,
    wire::outcome::OutcomeHead::STRUCTURE,
    wire::outcome::OutcomeItem::STRUCTURE,
    wire::outcome::Flushed::STRUCTURE,
    wire::outcome::EventItem::STRUCTURE,
    wire::outcome::ViewItem::STRUCTURE,
];

/// Every structure of the format as a Markdown section with its fields. `docs/format.md` has
/// this text between its markers, and a test compares it, so that the page cannot drift from the
/// code.
pub fn render_structures() -> String {
    render(STRUCTURES)
}

/// As [`render_structures`], for the structures of the wire protocol in `docs/protocol.md`.
pub fn render_wire_structures() -> String {
    render(WIRE_STRUCTURES)
}

fn render(structures: &[Structure]) -> String {
    let mut out = String::new();
    for s in structures {
        // Writing to a String cannot fail.
        let _ = write!(out, "### {}: {} bytes\n\n{}\n\n", s.name, s.size, s.doc.trim());
        for f in s.fields.iter().filter(|f| !is_reserved(f)) {
            // The length of an unsigned integer, or of bytes, says its type.
            let ty = match f.ty {
                "u8" | "u16" | "u32" | "u64" => String::new(),
                ty if ty.starts_with("[u8;") => String::new(),
                ty => format!(" `{ty}`"),
            };
            let (end, doc) = (f.offset + f.size, f.doc.trim());
            let _ = writeln!(out, "- {}..{end} `{}`{ty}: {doc}", f.offset, f.name);
        }
        out.push('\n');
    }
    out
}

/// The pages say once that bytes without a field are reserved.
fn is_reserved(field: &Field) -> bool {
    field.doc.trim() == "Zero."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_no_gaps() {
        for s in STRUCTURES.iter().chain(WIRE_STRUCTURES) {
            let mut at = 0;
            for f in s.fields {
                assert_eq!(f.offset, at, "{}.{}", s.name, f.name);
                assert!(
                    f.doc.starts_with(' ') && f.doc.ends_with('.'),
                    "{}.{}: {}",
                    s.name,
                    f.name,
                    f.doc
                );
                at += f.size;
            }
            assert_eq!(at, s.size, "{}", s.name);
        }
    }

    #[test]
    fn rendered_page_has_every_structure_and_field() {
        let page = render_structures();
        for s in STRUCTURES {
            assert!(page.contains(&format!("### {}: {} bytes\n", s.name, s.size)), "{}", s.name);
            for f in s.fields {
                let item = format!("\n- {}..{} `{}`", f.offset, f.offset + f.size, f.name);
                assert_eq!(page.contains(&item), !is_reserved(f), "{}.{}", s.name, f.name);
            }
        }
    }
}
