//! The files of a disk, by number. A number is found once, at open or create, and used from then
//! on, so that no operation looks up or copies a name.

use std::sync::Arc;

use super::fault_rates::FileOffset;
use super::file::SimFile;

/// A file by directory number and name.
pub(crate) type FileKey = (usize, String);

/// A file of the table. Numbers are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileNo(usize);

/// A file and its name.
#[derive(Clone, Debug)]
pub(crate) struct NamedFile {
    pub(crate) dir: usize,
    pub(crate) name: Arc<str>,
    /// Directory and name, as in messages.
    pub(crate) path: Arc<str>,
    pub(crate) file: SimFile,
    /// Its name is removed; processes that have it open still read and write it.
    pub(crate) unlinked: bool,
}

impl NamedFile {
    /// A position in this file.
    pub(crate) fn file_offset(&self, offset: u64) -> FileOffset {
        FileOffset { dir: self.dir, name: self.name.to_string(), offset }
    }

    /// The kind of file: `manifest.0` and `manifest.1` in any directory are of one kind.
    pub(crate) fn kind(&self) -> &str {
        match self.name.rsplit_once('.') {
            Some((stem, number)) if number.bytes().all(|b| b.is_ascii_digit()) => stem,
            _ => &self.name,
        }
    }
}

/// All files; a removed file leaves an empty entry.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileTable(Vec<Option<NamedFile>>);

impl FileTable {
    /// Add a file whose name is not in use.
    pub(crate) fn add(&mut self, key: &FileKey, file: SimFile) -> FileNo {
        let (dir, name) = (key.0, Arc::from(key.1.as_str()));
        self.0.push(Some(NamedFile { dir, name, path: path(key).into(), file, unlinked: false }));
        FileNo(self.0.len() - 1)
    }

    /// The file with this name.
    pub(crate) fn find(&self, dir: usize, name: &str) -> Option<FileNo> {
        let is = |f: &Option<NamedFile>| {
            f.as_ref().is_some_and(|f| !f.unlinked && f.dir == dir && *f.name == *name)
        };
        self.0.iter().position(is).map(FileNo)
    }

    /// Removes a file.
    pub(crate) fn remove(&mut self, no: FileNo) {
        self.0[no.0] = None;
    }

    /// A file, if it was not removed.
    pub(crate) fn get(&self, no: FileNo) -> Option<&NamedFile> {
        self.0.get(no.0)?.as_ref()
    }

    /// A file, if it was not removed.
    pub(crate) fn get_mut(&mut self, no: FileNo) -> Option<&mut NamedFile> {
        self.0.get_mut(no.0)?.as_mut()
    }

    /// All files, by number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (FileNo, &NamedFile)> {
        self.0.iter().enumerate().filter_map(|(i, f)| f.as_ref().map(|f| (FileNo(i), f)))
    }

    /// All files, sorted by directory and name.
    pub(crate) fn files_mut(&mut self) -> impl Iterator<Item = &mut SimFile> {
        let mut files: Vec<&mut NamedFile> = self.0.iter_mut().flatten().collect();
        files.sort_unstable_by(|a, b| (a.dir, &a.name).cmp(&(b.dir, &b.name)));
        files.into_iter().map(|f| &mut f.file)
    }

    /// Names and lengths in a directory, sorted by name.
    pub(crate) fn list(&self, dir: usize) -> Vec<(String, u64)> {
        let own = self.iter().filter(|(_, f)| f.dir == dir && !f.unlinked);
        let mut list: Vec<_> = own.map(|(_, f)| (f.name.to_string(), f.file.len)).collect();
        list.sort_unstable();
        list
    }
}

/// A file's name in messages.
pub(crate) fn path(key: &FileKey) -> String {
    format!("{}/{}", dir_name(key.0), key.1)
}

/// A directory's name in messages.
pub(crate) fn dir_name(dir: usize) -> String {
    format!("sim{dir}")
}
