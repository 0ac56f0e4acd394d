//! Writes a checkpoint in four steps: chunks, sync, header, sync.
//!
//! The two checkpoint files are written alternately. Until the new header is durable, the older
//! checkpoint is the newest complete one. What admission has learned is written with the chunks,
//! into the last chunk of the file if that is free.

use pagelith_io::buffer::AlignedBuf;
use pagelith_io::disk::{FileId, Op};
use pagelith_io::fault::IoFault;
use pagelith_layouts::checkpoint::{
    self, CHUNK_BYTES, CHUNK_ITEMS, CheckpointEntry, CheckpointFacts, ChunkKind, SegmentMark,
};
use pagelith_layouts::ids::{SegmentOrder, Sequence, StoreId};
use pagelith_layouts::learned::{self, LEARNED_BYTES, Learned};

use super::serial_queue::no_memory;

/// Most chunks that wait to be written; bounds the writer's memory to 1 MiB.
const CHUNKS_WAITING: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CheckpointStep {
    Chunks,
    ChunksSync,
    Head,
    HeadSync,
}

/// A checkpoint being written, driven by [`CheckpointWriter::next_op`] and
/// [`CheckpointWriter::ended`].
pub struct CheckpointWriter {
    file: FileId,
    facts: CheckpointFacts,
    items: Vec<CheckpointEntry>,
    ops: Vec<Op>,
    in_flight: usize,
    complete: bool,
    step: CheckpointStep,
    fault: Option<IoFault>,
    chunks_max: u64,
}

impl CheckpointWriter {
    /// Begin checkpoint `serial` in `file`, which is `file_bytes` long, with a mark for each
    /// segment.
    pub fn begin(
        file: FileId,
        file_bytes: u64,
        store: StoreId,
        serial: u64,
        sequence: Sequence,
        replay_from: SegmentOrder,
        marks: &[SegmentMark],
    ) -> Result<CheckpointWriter, IoFault> {
        let facts = CheckpointFacts {
            store,
            serial,
            sequence,
            next_sequence: sequence,
            replay_from,
            segment_count: marks.len() as u32,
            entry_count: 0,
            chunk_count: 0,
            clean: false,
        };
        let mut writer = CheckpointWriter {
            file,
            facts,
            items: Vec::new(),
            ops: Vec::new(),
            in_flight: 0,
            complete: false,
            step: CheckpointStep::Chunks,
            fault: None,
            chunks_max: (file_bytes - checkpoint::chunk_offset(0)) / CHUNK_BYTES as u64,
        };
        for chunk in marks.chunks(CHUNK_ITEMS) {
            writer.chunk(ChunkKind::Segments, bytemuck::cast_slice(chunk))?;
        }
        Ok(writer)
    }

    /// Whether the writer accepts more entries now.
    pub fn wants_entries(&self) -> bool {
        !self.complete && self.ops.len() < CHUNKS_WAITING
    }

    /// Add an entry.
    pub fn push(&mut self, entry: CheckpointEntry) -> Result<(), IoFault> {
        self.items.push(entry);
        self.facts.entry_count += 1;
        if self.items.len() == CHUNK_ITEMS { self.entry_chunk() } else { Ok(()) }
    }

    /// End the list of entries; `learned` is kept with it if the file has room.
    pub fn finish(
        &mut self,
        next_sequence: Sequence,
        clean: bool,
        learned: Option<&Learned>,
    ) -> Result<(), IoFault> {
        if !self.items.is_empty() {
            self.entry_chunk()?;
        }
        if let Some(learned) = learned.filter(|_| self.facts.chunk_count < self.chunks_max) {
            let bytes = learned::encode(learned, self.facts.store, self.facts.serial);
            let mut buf =
                AlignedBuf::new(LEARNED_BYTES).map_err(|e| no_memory(LEARNED_BYTES, &e))?;
            buf.copy_from_slice(&bytes);
            let offset = checkpoint::chunk_offset(self.chunks_max - 1);
            self.ops.push(Op::Write { file: self.file, offset, parts: vec![buf.into_part()] });
        }
        (self.facts.next_sequence, self.facts.clean) = (next_sequence, clean);
        self.complete = true;
        Ok(())
    }

    fn entry_chunk(&mut self) -> Result<(), IoFault> {
        let items = std::mem::take(&mut self.items);
        self.chunk(ChunkKind::Entries, bytemuck::cast_slice(&items))
    }

    fn chunk(&mut self, kind: ChunkKind, items: &[u8]) -> Result<(), IoFault> {
        let index = self.facts.chunk_count;
        let mut buf = AlignedBuf::new(CHUNK_BYTES).map_err(|e| no_memory(CHUNK_BYTES, &e))?;
        let whole = checkpoint::encode_chunk(
            &mut buf,
            kind,
            self.facts.store,
            self.facts.serial,
            index,
            items,
        );
        if !whole || index >= self.chunks_max {
            return Err(no_memory(CHUNK_BYTES, &std::io::Error::other("checkpoint file is full")));
        }
        let offset = checkpoint::chunk_offset(index);
        self.ops.push(Op::Write { file: self.file, offset, parts: vec![buf.into_part()] });
        self.facts.chunk_count += 1;
        Ok(())
    }

    /// The next operation to submit, if any.
    pub fn next_op(&mut self) -> Option<Op> {
        if self.ops.is_empty()
            && self.in_flight == 0
            && self.complete
            && self.step == CheckpointStep::Chunks
        {
            self.step = CheckpointStep::ChunksSync;
            self.ops.push(Op::Sync { file: self.file });
        }
        let op = self.ops.pop()?;
        self.in_flight += 1;
        Some(op)
    }

    /// Return an operation that could not be submitted.
    pub fn put_back(&mut self, op: Op) {
        self.in_flight -= 1;
        self.ops.push(op);
    }

    /// Handle the completion of an operation. `Some` once the checkpoint is durable or has failed;
    /// after a failure the older checkpoint remains valid.
    pub fn ended(&mut self, result: Result<(), IoFault>) -> Option<Result<(), IoFault>> {
        self.in_flight -= 1;
        if let Err(fault) = result {
            self.fault.get_or_insert(fault);
            self.ops.clear();
        }
        if self.in_flight > 0 {
            return None;
        }
        if let Some(fault) = self.fault.take() {
            return Some(Err(fault));
        }
        match self.step {
            CheckpointStep::Chunks => None,
            CheckpointStep::ChunksSync => {
                // The header names the chunks, so they must be durable before it is written.
                self.step = CheckpointStep::Head;
                match AlignedBuf::new(4096) {
                    Ok(mut buf) => {
                        buf.copy_from_slice(&checkpoint::encode_head(&self.facts));
                        self.ops.push(Op::Write {
                            file: self.file,
                            offset: 0,
                            parts: vec![buf.into_part()],
                        });
                        None
                    }
                    Err(e) => Some(Err(no_memory(4096, &e))),
                }
            }
            CheckpointStep::Head => {
                self.step = CheckpointStep::HeadSync;
                self.ops.push(Op::Sync { file: self.file });
                None
            }
            CheckpointStep::HeadSync => Some(Ok(())),
        }
    }
}
