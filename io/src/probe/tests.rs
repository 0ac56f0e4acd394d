use super::dir::{ALIGN_MAX, OVERLAYFS, RAMFS, TMPFS, alignment};
use super::*;

const EXT4: u64 = 0xef53;
const ALIGN: Alignment = Alignment { memory: 512, offset: 4096 };

fn unsupported(path: &str, errno: i32) -> IoFault {
    let mut fault = IoFault::of_errno(FaultOp::Queue, path, 0, errno);
    fault.kind = FaultKind::Unsupported;
    fault
}

fn chosen(
    choice: BackendChoice,
    uring: Result<Alignment, IoFault>,
    direct: Result<Alignment, IoFault>,
) -> Result<(IoBackend, bool, Alignment, String), IoFault> {
    decide(choice, || uring, || direct).map(|c| (c.backend, c.direct, c.align, c.reason))
}

#[test]
fn uring_is_chosen_where_it_works() {
    for choice in [BackendChoice::Auto, BackendChoice::Uring] {
        let (backend, direct, align, _) =
            chosen(choice, Ok(ALIGN), Err(unsupported("d", 22))).unwrap();
        assert_eq!((backend, direct, align), (IoBackend::Uring, true, ALIGN));
    }
    let (backend, direct, ..) = chosen(BackendChoice::Blocking, Ok(ALIGN), Ok(ALIGN)).unwrap();
    assert_eq!((backend, direct), (IoBackend::Blocking, true));
}

#[test]
fn refusal_is_named_and_falls_back_only_with_auto() {
    let eperm = || Err(unsupported("io_uring_setup", 1));
    let (backend, direct, align, reason) = chosen(BackendChoice::Auto, eperm(), Ok(ALIGN)).unwrap();
    assert_eq!((backend, direct, align), (IoBackend::Blocking, true, ALIGN));
    assert!(
        reason.starts_with("io_uring_setup: errno=1") && reason.ends_with("using blocking"),
        "{reason}"
    );

    let (backend, direct, align, reason) =
        chosen(BackendChoice::Auto, eperm(), Err(unsupported("dir", 22))).unwrap();
    assert_eq!((backend, direct, align), (IoBackend::Blocking, false, BUFFERED));
    assert!(
        reason.contains("errno=1 ") && reason.contains("no O_DIRECT: dir: errno=22"),
        "{reason}"
    );

    let fault = chosen(BackendChoice::Uring, eperm(), Ok(ALIGN)).unwrap_err();
    assert_eq!((fault.kind, fault.errno), (FaultKind::Unsupported, 1));
    assert!(fault.detail.contains("io_uring_setup"), "{fault}");
}

#[test]
fn failing_or_full_directory_does_not_fall_back() {
    for kind in [FaultKind::Device, FaultKind::NoSpace, FaultKind::ReadOnly] {
        let fault = || Err(IoFault::found(kind, FaultOp::Write, "dir", 0, "planted"));
        assert_eq!(chosen(BackendChoice::Auto, fault(), Ok(ALIGN)).unwrap_err().kind, kind);
        let refused = Err(unsupported("io_uring_setup", 38));
        assert_eq!(chosen(BackendChoice::Auto, refused, fault()).unwrap_err().kind, kind);
        assert_eq!(chosen(BackendChoice::Blocking, Ok(ALIGN), fault()).unwrap_err().kind, kind);
    }
}

#[test]
fn alignment_follows_file_system_and_statx() {
    let align = |memory, offset| Ok(Alignment { memory, offset });
    assert_eq!(alignment(EXT4, Some((4, 512))), align(512, 512));
    assert_eq!(alignment(EXT4, Some((512, 4096))), align(512, 4096));
    assert_eq!(alignment(EXT4, None), align(ALIGN_MAX, ALIGN_MAX));
    assert_eq!(alignment(OVERLAYFS, Some((512, 512))), align(512, 512));
    let refused = [
        (EXT4, Some((0, 0)), "statx"),
        (EXT4, Some((512, 8192)), "align=8192"),
        (EXT4, Some((768, 512)), "align=768"),
        (TMPFS, Some((512, 512)), "tmpfs"),
        (TMPFS, None, "tmpfs"),
        (RAMFS, None, "ramfs"),
        (OVERLAYFS, None, "overlayfs"),
    ];
    for (fs, reported, why) in refused {
        let text = alignment(fs, reported).unwrap_err();
        assert!(text.contains(why), "{text}");
    }
}
