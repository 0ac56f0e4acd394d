//! Encoding of outcomes.

use super::*;

/// An outcome to encode: as [`DecodedOutcome`], with slices instead of lists.
pub enum OutcomeToSend<'a> {
    /// One outcome per item; the block size of the hits' checksums in bytes.
    Items(&'a [Item<'a>], u32),
    /// One bit per item.
    Bits(&'a [bool]),
    /// A number.
    Number(u64),
    /// Result of a flush.
    Flushed(Flushed),
    /// A text.
    Text(&'a str),
    /// Events; the position of the next event; the number of events dropped before these.
    Events(&'a [EventItem], u64, u64),
    /// Locations of objects.
    Views(&'a [ViewItem]),
    /// Failure of the whole operation.
    Failed(Failure<'a>),
}

/// Encode the body of an outcome. Nothing is checked; [`decode`] checks.
pub fn encode(verb: Verb, answer: &OutcomeToSend<'_>) -> Vec<u8> {
    let mut head: OutcomeHead = bytemuck::Zeroable::zeroed();
    head.verb = verb as u8;
    let mut tail = Vec::new();
    match answer {
        OutcomeToSend::Items(items, block_bytes) => {
            head.form = FORM_ITEMS;
            head.item_count = items.len() as u32;
            tail = encode_items(&mut head, items, *block_bytes);
        }
        OutcomeToSend::Bits(bits) => {
            (head.form, head.item_count) = (FORM_BITS, bits.len() as u32);
            tail = Bits::pack(bits);
        }
        OutcomeToSend::Number(number) => (head.form, head.number) = (FORM_NUMBER, *number),
        OutcomeToSend::Flushed(flushed) => {
            head.form = FORM_FLUSHED;
            tail.extend_from_slice(bytemuck::bytes_of(flushed));
        }
        OutcomeToSend::Text(text) => {
            (head.form, head.text_bytes) = (FORM_TEXT, text.len() as u32);
            tail.extend_from_slice(text.as_bytes());
        }
        OutcomeToSend::Events(items, next, lost) => {
            (head.form, head.item_count) = (FORM_EVENTS, items.len() as u32);
            (head.number, head.lost) = (*next, *lost);
            tail.extend_from_slice(bytemuck::cast_slice(items));
        }
        OutcomeToSend::Views(items) => {
            (head.form, head.item_count) = (FORM_VIEWS, items.len() as u32);
            tail.extend_from_slice(bytemuck::cast_slice(items));
        }
        OutcomeToSend::Failed(failure) => {
            let text = failure.truncated_text(1);
            (head.form, head.error, head.errno) = (FORM_FAILED, failure.error as u8, failure.errno);
            head.text_bytes = text.len() as u32;
            tail.extend_from_slice(text.as_bytes());
        }
    }
    [bytemuck::bytes_of(&head), &tail].concat()
}

fn encode_items(head: &mut OutcomeHead, items: &[Item<'_>], block_bytes: u32) -> Vec<u8> {
    let mut rows = Vec::with_capacity(items.len() * OutcomeItem::BYTES);
    let (mut sums, mut bases, mut texts) = (Vec::new(), Vec::new(), Vec::new());
    let failed = items.iter().filter(|item| matches!(item.verdict, ItemOutcome::Failed(_))).count();
    for item in items {
        let mut row: OutcomeItem = bytemuck::Zeroable::zeroed();
        row.key_hash = item.key_hash;
        match item.verdict {
            ItemOutcome::Hit { tier, length, checksums, members, base } => {
                (row.state, row.tier, row.length, row.members) =
                    (STATE_HIT, tier as u8, length, members);
                if let Some(base) = base {
                    row.base = base.number.saturating_add(1);
                    if base.number as usize * ObjectKey::BYTES == bases.len() {
                        bases.extend_from_slice(bytemuck::bytes_of(&base.key));
                    }
                }
                row.checksum_count = checksums.len() as u32;
                sums.extend_from_slice(checksums.bytes());
            }
            ItemOutcome::Miss(cause) => (row.state, row.cause) = (STATE_MISS, cause as u8),
            ItemOutcome::Stored => row.state = STATE_STORED,
            ItemOutcome::AlreadyPresent => row.state = STATE_PRESENT,
            ItemOutcome::Waiting => row.state = STATE_WAITING,
            ItemOutcome::Refused => row.state = STATE_REFUSED,
            ItemOutcome::Failed(failure) => {
                let text = failure.truncated_text(failed);
                (row.state, row.error, row.errno) =
                    (STATE_FAILED, failure.error as u8, failure.errno);
                row.text_bytes = text.len() as u32;
                texts.extend_from_slice(text.as_bytes());
            }
        }
        rows.extend_from_slice(bytemuck::bytes_of(&row));
    }
    head.checksum_count = (sums.len() / size_of::<Checksum>()) as u32;
    head.block_bytes = if sums.is_empty() { 0 } else { block_bytes };
    head.text_bytes = texts.len() as u32;
    head.number = (bases.len() / ObjectKey::BYTES) as u64;
    [rows, sums, bases, texts].concat()
}
