//! Decoding of outcomes.

use super::*;
use crate::checksum::{block_count, is_valid_block_bytes};
use crate::error::FormatError;
use crate::format::{is_zero, read};
use crate::key::KeyCheck;
use crate::record::OBJECT_BYTES_MAX;

/// A decoded outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodedOutcome<'a> {
    /// For get and put: one outcome per item.
    Items(Items<'a>),
    /// For exists and missing: one bit per item.
    Bits(Bits<'a>),
    /// For exists prefix, remove, clear, ping, pin, unpin, lease, begin, commit, abort, prefetch,
    /// hold, release, used and hint.
    Number(u64),
    /// For flush.
    Flushed(Flushed),
    /// For stats: a JSON object.
    Text(&'a str),
    /// For events.
    Events(EventList<'a>),
    /// For view: one per object.
    Views(List<'a, ViewItem>),
    /// The operation failed as a whole, without effect on any item.
    Failed(Failure<'a>),
}

/// Read an outcome. `Ok` means that every number is valid; the client must check that the outcome
/// matches its request (verb, items, keys and lengths).
pub fn decode(body: &[u8]) -> Result<(Verb, DecodedOutcome<'_>), FormatError> {
    let have = body.len() as u64;
    let head: OutcomeHead = read(body).ok_or(FormatError::Short {
        structure: WHAT,
        need: OutcomeHead::BYTES as u64,
        have,
    })?;
    let verb =
        Verb::from_tag(head.verb).ok_or_else(|| FormatError::field(WHAT, "verb", head.verb))?;
    if head.form != form_of(verb) && head.form != FORM_FAILED {
        return Err(FormatError::field(WHAT, "form", head.form));
    }
    check_unused(&head)?;
    let mut rest = &body[OutcomeHead::BYTES..];
    let answer = match head.form {
        FORM_ITEMS => DecodedOutcome::Items(items(&head, &mut rest)?),
        FORM_BITS => {
            let bits = Bits::new(rest, head.item_count).filter(|bits| !bits.is_empty());
            rest = &[];
            DecodedOutcome::Bits(
                bits.ok_or_else(|| FormatError::field(WHAT, "item_count", head.item_count))?,
            )
        }
        FORM_NUMBER => DecodedOutcome::Number(head.number),
        FORM_FLUSHED => {
            let flushed = List::<Flushed>::take(&mut rest, 1).and_then(|list| list.get(0));
            DecodedOutcome::Flushed(
                flushed.ok_or_else(|| FormatError::field(WHAT, "length", have))?,
            )
        }
        FORM_TEXT => DecodedOutcome::Text(text(&mut rest, head.text_bytes)?),
        FORM_EVENTS => DecodedOutcome::Events(events::read(&head, &mut rest)?),
        FORM_VIEWS => DecodedOutcome::Views(views::read(&head, &mut rest)?),
        _ => {
            let text = text(&mut rest, head.text_bytes)?;
            DecodedOutcome::Failed(failure(head.error, head.errno, text)?)
        }
    };
    if !rest.is_empty() {
        return Err(FormatError::field(WHAT, "length", have));
    }
    Ok((verb, answer))
}

/// Check that fields which the form does not use are zero.
fn check_unused(head: &OutcomeHead) -> Result<(), FormatError> {
    let form = head.form;
    let has_items = form == FORM_ITEMS || form == FORM_BITS || form == FORM_VIEWS;
    let has_text = form == FORM_ITEMS || form == FORM_TEXT || form == FORM_FAILED;
    let block_ok = if head.checksum_count > 0 {
        is_valid_block_bytes(head.block_bytes)
    } else {
        head.block_bytes == 0
    };
    let checks = [
        ("reserved", head.reserved == 0),
        ("error", form == FORM_FAILED || (head.error, head.errno) == (0, 0)),
        ("item_count", form == FORM_EVENTS || (head.item_count > 0) == has_items),
        ("checksum_count", form == FORM_ITEMS || head.checksum_count == 0),
        ("block_bytes", block_ok),
        ("text_bytes", has_text || head.text_bytes == 0),
        (
            "number",
            form == FORM_NUMBER || form == FORM_ITEMS || (head.number > 0) == (form == FORM_EVENTS),
        ),
        ("lost", form == FORM_EVENTS || head.lost == 0),
    ];
    match checks.into_iter().find(|(_, ok)| !ok) {
        Some((field, _)) => Err(FormatError::field(WHAT, field, "out of range")),
        None => Ok(()),
    }
}

fn text<'a>(rest: &mut &'a [u8], bytes: u32) -> Result<&'a str, FormatError> {
    let (text, after) = rest
        .split_at_checked(bytes as usize)
        .ok_or_else(|| FormatError::field(WHAT, "text_bytes", bytes))?;
    *rest = after;
    str::from_utf8(text).map_err(|_| FormatError::field(WHAT, "text", "not UTF-8"))
}

fn failure(tag: u8, errno: i32, text: &str) -> Result<Failure<'_>, FormatError> {
    let error = ErrorTag::from_tag(tag).ok_or_else(|| FormatError::field(WHAT, "error", tag))?;
    if text.len() > TEXT_MAX {
        return Err(FormatError::field(WHAT, "text_bytes", text.len()));
    }
    Ok(Failure { error, errno, text })
}

fn items<'a>(head: &OutcomeHead, rest: &mut &'a [u8]) -> Result<Items<'a>, FormatError> {
    let missing = |field| move || FormatError::field(WHAT, field, "beyond the end of the body");
    let rows =
        List::<OutcomeItem>::take(rest, head.item_count).ok_or_else(missing("item_count"))?;
    let checksums =
        List::<Checksum>::take(rest, head.checksum_count).ok_or_else(missing("checksum_count"))?;
    let bases =
        u32::try_from(head.number).ok().and_then(|count| List::<ObjectKey>::take(rest, count));
    let bases = bases.ok_or_else(missing("number"))?;
    KeyCheck::check_all(bases.iter())?;
    let texts = text(rest, head.text_bytes)?;
    let (mut sums, mut text_end, mut base_count) = (0u64, 0u64, 0u32);
    for row in rows.iter() {
        check_row(&row, head.block_bytes)?;
        if row.base > base_count.saturating_add(1) {
            return Err(FormatError::field(WHAT, "base", row.base));
        }
        base_count = base_count.max(row.base);
        sums += u64::from(row.checksum_count);
        text_end += u64::from(row.text_bytes);
        // Each text must be valid UTF-8 by itself.
        if usize::try_from(text_end).map_or(true, |end| !texts.is_char_boundary(end)) {
            return Err(FormatError::field(WHAT, "text_bytes", row.text_bytes));
        }
    }
    if sums != checksums.len() as u64 {
        return Err(FormatError::field(WHAT, "checksum_count", sums));
    }
    if text_end != texts.len() as u64 {
        return Err(FormatError::field(WHAT, "text_bytes", text_end));
    }
    if base_count as usize != bases.len() {
        return Err(FormatError::field(WHAT, "number", head.number));
    }
    Ok(Items { items: rows, checksums, bases, texts, block_bytes: head.block_bytes })
}

fn check_row(row: &OutcomeItem, block_bytes: u32) -> Result<(), FormatError> {
    const WHAT: &str = "outcome item";
    let state = row.state;
    let (hit, miss, failed) = (state == STATE_HIT, state == STATE_MISS, state == STATE_FAILED);
    // A range may begin and end inside a block, and then touches one block more than its length
    // needs.
    let blocks = u64::from(row.checksum_count);
    let blocks_ok = hit && block_bytes > 0 && {
        let least = block_count(row.length, block_bytes);
        (least..=least + 1).contains(&blocks)
    };
    let checks = [
        ("state", (STATE_HIT..=STATE_FAILED).contains(&state)),
        ("tier", if hit { tier(row.tier).is_some() } else { row.tier == 0 }),
        ("cause", if miss { cause(row.cause).is_some() } else { row.cause == 0 }),
        (
            "error",
            if failed {
                ErrorTag::from_tag(row.error).is_some()
            } else {
                row.error == 0 && row.errno == 0
            },
        ),
        (
            "length",
            if hit { (1..=OBJECT_BYTES_MAX).contains(&row.length) } else { row.length == 0 },
        ),
        ("checksum_count", if hit { blocks_ok } else { blocks == 0 }),
        ("text_bytes", row.text_bytes as usize <= if failed { TEXT_MAX } else { 0 }),
        ("key_hash", !is_zero(&row.key_hash)),
        ("members", hit || row.members == 0),
        ("base", row.base == 0 || (hit && row.members > 0)),
    ];
    match checks.into_iter().find(|(_, ok)| !ok) {
        Some((field, _)) => Err(FormatError::field(WHAT, field, "out of range")),
        None => Ok(()),
    }
}

fn tier(tag: u8) -> Option<TierTag> {
    TierTag::ALL.into_iter().find(|t| *t as u8 == tag)
}

fn cause(tag: u8) -> Option<CauseTag> {
    CauseTag::ALL.into_iter().find(|c| *c as u8 == tag)
}

impl<'a> Items<'a> {
    /// Number of items.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Block size of the hits' checksums in bytes; 0 if there are none.
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// All items, in the order of the request.
    pub fn iter(&self) -> impl Iterator<Item = Item<'a>> + use<'a> {
        let (checksums, bases, texts) = (self.checksums, self.bases, self.texts);
        let (mut first_sum, mut text_start) = (0usize, 0usize);
        self.items.iter().map(move |row| {
            let last = first_sum + row.checksum_count as usize;
            let end = text_start + row.text_bytes as usize;
            let text = texts.get(text_start..end).unwrap_or_default();
            let own = checksums.slice(first_sum, last);
            (first_sum, text_start) = (last, end);
            let number = row.base.checked_sub(1);
            let base = number
                .and_then(|number| Some(BaseRef { number, key: bases.get(number as usize)? }));
            Item { key_hash: row.key_hash, verdict: verdict(&row, own, base, text) }
        })
    }
}

/// The outcome in a row that [`check_row`] accepted.
fn verdict<'a>(
    row: &OutcomeItem,
    checksums: List<'a, Checksum>,
    base: Option<BaseRef>,
    text: &'a str,
) -> ItemOutcome<'a> {
    match row.state {
        STATE_HIT => {
            let tier = tier(row.tier).unwrap_or(TierTag::Remote);
            ItemOutcome::Hit { tier, length: row.length, checksums, members: row.members, base }
        }
        STATE_MISS => ItemOutcome::Miss(cause(row.cause).unwrap_or(CauseTag::Absent)),
        STATE_STORED => ItemOutcome::Stored,
        STATE_PRESENT => ItemOutcome::AlreadyPresent,
        STATE_WAITING => ItemOutcome::Waiting,
        STATE_REFUSED => ItemOutcome::Refused,
        _ => {
            let error = ErrorTag::from_tag(row.error).unwrap_or(ErrorTag::Internal);
            ItemOutcome::Failed(Failure { error, errno: row.errno, text })
        }
    }
}
