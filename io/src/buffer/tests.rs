use super::*;

#[test]
fn split_part_joins_and_returns_buffer() {
    let mut buf = AlignedBuf::new(8192).expect("memory");
    buf[4096] = 7;
    let (a, b) = buf.into_part().split(4096);
    assert_eq!((a.len(), b.len(), b.bytes()[0]), (4096, 4096, 7));
    let (b, a) = b.join(a).expect_err("wrong order");
    let whole = a.join(b).expect("neighbours");
    assert_eq!(whole.into_buf().map(|b| b.len()), Some(8192));
}

#[test]
fn buffer_is_not_returned_while_another_part_exists() {
    let (a, b) = AlignedBuf::new(8192).expect("memory").into_part().split(4096);
    assert!(a.into_buf().is_none());
    assert_eq!(b.bytes().len(), 4096);
}

#[test]
fn reused_buffer_memory_is_zeroed_and_unshared() {
    for len in [1usize, 4096, 5000, 65536, 1 << 20, 3 << 20] {
        for _ in 0..3 {
            let mut two =
                [AlignedBuf::new(len).expect("memory"), AlignedBuf::new(len).expect("memory")];
            for buf in &mut two {
                assert!(buf.len() == len && buf.iter().all(|b| *b == 0), "len={len}");
                assert_eq!(buf.as_ptr() as usize % 4096, 0);
                buf.fill(0xa5);
            }
            let [a, b] = two.map(|buf| buf.as_ptr() as usize);
            assert!(a.abs_diff(b) >= len, "two buffers share memory");
        }
    }
}

#[test]
fn buffers_of_one_mapping_are_disjoint_and_independent() {
    let mut many = AlignedBuf::many(5, 5000).expect("memory");
    for (i, buf) in many.iter_mut().enumerate() {
        assert!(buf.len() == 5000 && buf.iter().all(|b| *b == 0));
        assert_eq!(buf.as_ptr() as usize % 4096, 0);
        buf.fill(i as u8 + 1);
    }
    let last = many.pop().expect("five").into_part();
    drop(many.drain(1..3));
    for (buf, i) in many.iter().zip([1, 4]) {
        assert!(buf.iter().all(|b| *b == i));
    }
    drop(many);
    assert!(last.bytes().iter().all(|b| *b == 5));
    assert_eq!(last.into_buf().map(|buf| buf.len()), Some(5000));
    assert!(AlignedBuf::many(0, 1).expect("nothing").is_empty());
    assert!(AlignedBuf::many(usize::MAX, 5000).is_err());
}

#[test]
fn buffers_of_different_lengths_are_ordered_in_one_mapping() {
    let lengths = [4096, 1, 5000, 0, 8192];
    let mut several = AlignedBuf::with_lengths(&lengths).expect("memory");
    let first = several[0].as_ptr().addr();
    let places: Vec<usize> = several.iter().map(|buf| buf.as_ptr().addr() - first).collect();
    assert_eq!(places, [0, 4096, 8192, 16384, 20480]);
    for (buf, i) in several.iter_mut().zip(1..) {
        assert!(buf.iter().all(|b| *b == 0));
        buf.fill(i);
    }
    for ((buf, len), i) in several.iter().zip(lengths).zip(1..) {
        assert!(buf.len() == len && buf.iter().all(|b| *b == i));
    }
    assert!(AlignedBuf::with_lengths(&[]).expect("nothing").is_empty());
    assert!(AlignedBuf::with_lengths(&[usize::MAX, usize::MAX]).is_err());
}

#[test]
fn shared_parts_return_after_last_reader() {
    let mut buf = AlignedBuf::new(8192).expect("memory");
    buf.fill(7);
    let (a, b) = buf.into_part().split(5000);
    let readers = SharedParts::new(vec![a, b]);
    let (one, mut other) = (readers.parts(), readers.parts());
    assert!(one.iter().chain(&other).all(|part| part.bytes().iter().all(|byte| *byte == 7)));
    assert!(other[0].bytes_mut().is_none(), "a reader's part can be written");
    drop(other);
    assert!(readers.clone().into_parts().is_none());
    drop(one);
    let whole = readers
        .into_parts()
        .expect("no reader is left")
        .into_iter()
        .reduce(|a, b| a.join(b).expect("neighbours"));
    assert_eq!(whole.and_then(Part::into_buf).map(|buf| buf.len()), Some(8192));
}

#[test]
fn lent_part_writes_to_borrowed_memory() {
    let mut bytes = vec![0u8; 16];
    BorrowScope::scope(|lender| {
        let mut part = lender.exclusive(&mut bytes);
        part.bytes_mut().expect("exclusive").fill(9);
    });
    assert_eq!(bytes, vec![9; 16]);
}
